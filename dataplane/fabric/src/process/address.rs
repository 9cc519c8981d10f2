//! The name of a port of a running fabric: `soft:PATH@NODE[:PORT]`.

use std::fmt;
use std::path::PathBuf;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAddress {
    pub path: PathBuf,
    /// The node, by its name in the topology or by its GUID (`0x0002c90300001001`).
    pub node: String,
    /// The port; `None` for the first one with a cable.
    pub port: Option<u8>,
}

impl PortAddress {
    pub fn parse(name: &str) -> Option<Self> {
        let (path, port) = name.strip_prefix("soft:")?.rsplit_once('@')?;
        let (node, port) = match port.rsplit_once(':') {
            Some((node, port)) => (node, Some(port.parse().ok().filter(|&port| port > 0)?)),
            None => (port, None),
        };
        let is_complete = !path.is_empty() && !node.is_empty();
        is_complete.then(|| Self { path: path.into(), node: node.into(), port })
    }
}

impl fmt::Display for PortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "soft:{}@{}", self.path.display(), self.node)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let address = PortAddress::parse("soft:/run/a@b/fabric@H-1:2").unwrap();
        assert_eq!((address.path.to_str(), &*address.node), (Some("/run/a@b/fabric"), "H-1"));
        assert_eq!(PortAddress::parse(&address.to_string()), Some(address));
        let whole = PortAddress::parse("soft:x@y").unwrap();
        assert_eq!((whole.port, whole.to_string()), (None, "soft:x@y".into()));
        for name in ["soft:", "soft:x", "soft:@y", "soft:x@", "soft:x@y:0", "soft:x@y:z", "x@y"] {
            assert_eq!(PortAddress::parse(name), None, "{name}");
        }
    }
}
