//! The parser of a configuration. It reports all mistakes in keys and values at once. The TOML
//! parser stops at the first mistake, so that key is removed, and the rest is parsed again.

use super::error::{ConfigError, ConfigErrors, explain};
use super::{InterfaceKind, NodeConfig};
use crate::device::DeviceName;
use serde::Deserialize;
use std::collections::BTreeSet;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer, Error};

const MISTAKES_MAX: usize = 20;

pub(super) fn parse(file: &str, text: &str) -> Result<NodeConfig, ConfigErrors> {
    let located = |error: &Error| {
        let reason = explain(error.message());
        match error.span() {
            Some(span) => ConfigError::at(file, text, span.start, reason),
            None => ConfigError::of_file(file, reason),
        }
    };
    let table = DeTable::parse(text).map_err(|error| located(&error))?;
    let (span, mut table) = (table.span(), table.into_inner());
    let (mut mistakes, mut removed) = (Vec::new(), BTreeSet::new());
    while mistakes.len() < MISTAKES_MAX {
        let rest = Deserializer::from(Spanned::new(span.clone(), table.clone()));
        let error = match NodeConfig::deserialize(rest) {
            Ok(config) if mistakes.is_empty() => return Ok(with_ports(config)),
            Ok(_) => break,
            Err(error) => error,
        };
        // A required key that was removed for a mistake is missing now, which is no other mistake.
        let missing = error.message().strip_prefix("missing field `");
        let missing = missing.and_then(|rest| rest.split('`').next());
        if !missing.is_some_and(|key| removed.contains(key)) {
            mistakes.push(located(&error));
        }
        let Some(key) = error.span().and_then(|span| remove(&mut table, span.start)) else { break };
        removed.insert(key);
    }
    Err(ConfigErrors::new(mistakes))
}

/// Writes the device of each IPoIB interface in its full form, so that `mlx5_0` and `mlx5_0:1` are
/// the same port.
fn with_ports(mut config: NodeConfig) -> NodeConfig {
    let interfaces = config.interfaces.values_mut();
    for interface in interfaces.filter(|one| one.kind == InterfaceKind::Ipoib) {
        if let Ok(name) = DeviceName::parse(&interface.device) {
            interface.device = name.to_string();
        }
    }
    config
}

/// Removes the innermost key at a byte of the text; returns its name.
fn remove(table: &mut DeTable<'_>, at: usize) -> Option<String> {
    let mut found = None;
    for (key, value) in table.iter_mut() {
        if key.span().contains(&at) {
            found = Some(key.clone());
            break;
        }
        // The span of a table covers only its header, so its keys are tried first.
        if let Some(inner) = remove_in(value.get_mut(), at) {
            return Some(inner);
        }
        if value.span().contains(&at) {
            found = Some(key.clone());
            break;
        }
    }
    let key = found?;
    table.remove(&key);
    Some(key.get_ref().to_string())
}

fn remove_in<'i>(value: &mut DeValue<'i>, at: usize) -> Option<String> {
    match value {
        DeValue::Table(table) => remove(table, at),
        DeValue::Array(list) => {
            let inner = list.iter_mut().find_map(|one| remove_in(one.get_mut(), at));
            inner.or_else(|| {
                let mut kept = DeArray::new();
                let rest = list.iter().filter(|one| !one.span().contains(&at));
                rest.cloned().for_each(|one| kept.push(one));
                let is_found = kept.len() < list.len();
                *list = kept;
                is_found.then(String::new)
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(text: &str) -> Vec<String> {
        let errors = NodeConfig::read("f", text).expect_err("it is refused");
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_mistakes_of_a_file_are_reported_with_positions_and_remedies() {
        let text = "[workers]\nidle = 'sleepy'\n\
                    [interface.ib0]\ndevice = 'soft:f@host1'\nadress = ['10.0.0.1/24']\n\
                    mode = 'rx'\npkey = '0x8001'\naddress = '10.0.0.1/24'\n\
                    [interface.ib1]\ndevice = 5\nmtu = 12\n[[route]]\nto = '10.0.0.0/8'\n\
                    via = ['gate']\n[rooter]\n";
        assert_eq!(
            mistakes(text),
            [
                "f:2:8: \"sleepy\" is not an idle strategy; write poll, pause or adaptive",
                "f:5:1: unknown key `adress`; did you mean `address`?",
                "f:6:8: `rx` is not a value here; write ud, rc, uc or auto",
                "f:7:8: text does not go here; write a number without quotes, as in 0x8001",
                "f:8:11: text does not go here; write a list in brackets, as in [\"10.0.0.1/24\"]",
                "f:10:10: a number does not go here; write text in quotes",
                "f:11:7: mtu 12 is out of range; write 1280 to 65520",
                "f:14:8: that is no IP address; write one as 10.0.0.1 or fd00::1",
                "f:15:2: unknown key `rooter`; did you mean `router`?",
            ]
        );
    }

    #[test]
    fn a_wrong_key_is_not_reported_missing_too() {
        assert_eq!(
            mistakes("[[route]]\nto = 'x'\nvia = ['10.0.0.1']\n"),
            ["f:2:6: \"x\" is not a prefix; write 10.1.0.0/16, or 0.0.0.0/0 for all"]
        );
    }

    #[test]
    fn invalid_toml_has_one_mistake() {
        assert_eq!(mistakes("[interface.ib0\ndevice = 5\nmtu = 'x'\n").len(), 1);
    }

    #[test]
    fn mistakes_in_a_report_are_limited() {
        let text: String = (0..100).map(|nth| format!("key{nth} = 1\n")).collect();
        assert_eq!(mistakes(&text).len(), MISTAKES_MAX);
    }
}
