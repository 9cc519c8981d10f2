//! The name of a port of a running fabric: `soft:PATH@NODE[:PORT]`.

use std::fmt;
use std::path::PathBuf;

/// A port of a running fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The server's socket.
    pub path: PathBuf,
    /// The node, by its name in the topology.
    pub node: String,
    /// Its port.
    pub port: u8,
}

impl Address {
    /// Reads a name; none if it is not one of these.
    pub fn parse(name: &str) -> Option<Self> {
        let (path, place) = name.strip_prefix("soft:")?.rsplit_once('@')?;
        let (node, port) = match place.rsplit_once(':') {
            Some((node, port)) => (node, port.parse().ok().filter(|&port| port > 0)?),
            None => (place, 1),
        };
        let is_whole = !path.is_empty() && !node.is_empty();
        is_whole.then(|| Self { path: path.into(), node: node.into(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "soft:{}@{}:{}", self.path.display(), self.node, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let address = Address::parse("soft:/run/a@b/fabric@H-1:2").unwrap();
        assert_eq!((address.path.to_str(), &*address.node), (Some("/run/a@b/fabric"), "H-1"));
        assert_eq!(Address::parse(&address.to_string()), Some(address));
        assert_eq!(Address::parse("soft:x@y").unwrap().port, 1);
        for name in ["soft:", "soft:x", "soft:@y", "soft:x@", "soft:x@y:0", "soft:x@y:z", "x@y"] {
            assert_eq!(Address::parse(name), None, "{name}");
        }
    }
}
