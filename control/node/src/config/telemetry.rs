//! The table `[telemetry]`: where a node offers its metrics.

use super::valid;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

const UNIX: &str = "unix:";

/// The table `[telemetry]`; by default the node offers no metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetrySettings {
    /// The address at which Prometheus reads the metrics.
    #[serde(deserialize_with = "address")]
    pub openmetrics: Option<MetricsAddress>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A TCP port at an address of this machine.
    Tcp(SocketAddr),
    /// A socket for programs of this user.
    Unix(PathBuf),
}

impl MetricsAddress {
    fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix(UNIX) {
            Some("") => None,
            Some(path) => Some(Self::Unix(path.into())),
            None => text.parse().ok().map(Self::Tcp),
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl Serialize for MetricsAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<MetricsAddress>, D::Error> {
    let text = String::deserialize(deserializer)?;
    valid(MetricsAddress::parse(&text).map(Some), || {
        format!("{text:?} is not an address for metrics; write 127.0.0.1:9111 or unix:PATH")
    })
}
