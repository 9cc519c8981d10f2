//! Writes a configuration as TOML, for `pollux config show`. Parsing the text results in the same
//! configuration.

use super::{AddressSetting, InterfaceSettings, Management, NodeConfig};
use pollux_dataplane::engine::idle::Idle;
use pollux_wire::ip::IpProtocol;
use pollux_wire::keys::PKey;
use serde::{Serialize, Serializer};
use std::ops::RangeInclusive;
use toml::{Table, Value};

impl NodeConfig {
    /// The configuration as TOML. With `has_defaults`, it has all keys that have a value; without,
    /// only those that differ from their defaults.
    pub fn to_toml(&self, has_defaults: bool) -> String {
        let mut table = Table::try_from(self).expect("its keys are text, its numbers small");
        if !has_defaults {
            let defaults = Table::try_from(Self::default()).expect("the same");
            remove_defaults(&mut table, &defaults);
            let defaults = Table::try_from(InterfaceSettings::default()).expect("the same");
            let interfaces = table.get_mut("interface").and_then(Value::as_table_mut);
            let interfaces = interfaces.into_iter().flat_map(|all| all.iter_mut());
            for interface in interfaces.filter_map(|(_, value)| value.as_table_mut()) {
                remove_defaults(interface, &defaults);
            }
        }
        let text = toml::to_string(&table).expect("a table is TOML");
        text.split_inclusive('\n').map(with_hexadecimal).collect()
    }
}

/// Removes keys with default values, and tables that become empty.
fn remove_defaults(table: &mut Table, defaults: &Table) {
    table.retain(|key, value| match (value, defaults.get(key)) {
        (Value::Table(table), Some(Value::Table(defaults))) => {
            remove_defaults(table, defaults);
            !table.is_empty()
        }
        (value, default) => default != Some(value),
    });
}

/// Writes P_Keys in hexadecimal, as all other output does.
fn with_hexadecimal(line: &str) -> String {
    match line.trim_end().strip_prefix("pkey = ").map(str::parse::<u16>) {
        Some(Ok(pkey)) => format!("pkey = {pkey:#06x}\n"),
        _ => line.into(),
    }
}

impl Serialize for AddressSetting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(prefix) => prefix.serialize(serializer),
            Self::Dhcp => serializer.serialize_str("dhcp"),
        }
    }
}

impl Serialize for Management {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("umad:{}", self.port()))
    }
}

pub(super) fn idle<S: Serializer>(idle: &Idle, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(idle.name())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's convention")]
pub(super) fn partition<S: Serializer>(pkey: &PKey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(pkey.0)
}

/// Writes the protocol as a number; the parser accepts numbers and names.
#[expect(clippy::ref_option, reason = "serde's convention")]
pub(super) fn protocol<S: Serializer>(
    protocol: &Option<IpProtocol>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    protocol.map(|protocol| protocol.0).serialize(serializer)
}

#[expect(clippy::ref_option, reason = "serde's convention")]
pub(super) fn ports<S: Serializer>(
    ports: &Option<RangeInclusive<u16>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let text = ports.as_ref().map(|ports| format!("{}-{}", ports.start(), ports.end()));
    text.serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[workers]
idle = "poll"

[interface.ib0]
device = "soft:/run/fabric@host1"
management = "umad:mlx5_0:1"
pkey = 0x8001
mode = "rc"
workers = 2
address = ["10.0.0.1/24", "fd00::1/64", "dhcp"]
router = ["10.0.0.254"]
shadow = "ib0"

[[interface.ib0.peer]]
address = "10.0.0.7"
mode = "ud"

[[interface.ib0.neighbor]]
address = "10.0.0.9"
link = "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:10:01"

[interface.eth1]
kind = "ethernet"
device = "eth1"
vlan = 20
frames = "zero-copy"

[[interface.eth1.neighbor]]
address = "10.0.2.9"
link = "02:00:00:00:00:09"

[interface.'a "b"']
device = "null:"
domain = "red"
acl_in = "web"
rpf = "strict"

[domain.red]
kernel_table = 100

[[acl.web]]
action = "permit"
source = "10.0.0.0/8"
protocol = "tcp"
destination_port = "80-443"

[[acl.web]]
action = "deny"
protocol = 47

[router]
kernel_table = 254

[telemetry]
openmetrics = "127.0.0.1:9111"

[[route]]
to = "10.1.0.0/16"
via = ["10.0.0.2", "10.0.0.3"]

[[route]]
to = "fd01::/64"
type = "prohibit"
"#;

    #[test]
    fn a_configuration_as_text_is_the_same_configuration() {
        let config = NodeConfig::read("f", FILE).expect("it is valid");
        for has_defaults in [false, true] {
            let text = config.to_toml(has_defaults);
            let again = NodeConfig::read("again", &text);
            assert_eq!(again.as_ref(), Ok(&config), "{text}");
        }
    }

    #[test]
    fn defaults_are_filled_in_or_left_out() {
        let config = NodeConfig::read("f", FILE).expect("it is valid");
        let (all, few) = (config.to_toml(true), config.to_toml(false));
        for key in ["cores = []", "mtu = 65520", "ipv6 = true", "pkey = 0xffff"] {
            assert!(all.contains(key), "{key}: {all}");
            assert!(!few.contains(key), "{key}: {few}");
        }
        assert!(few.contains("pkey = 0x8001\n") && few.contains("[interface.'a \"b\"']"), "{few}");
    }
}
