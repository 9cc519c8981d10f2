//! Where sockets come from: a device by its name or a file, and an interface of it.

use crate::error::UpError;
use crate::interface::Interface;
use crate::pinned;
use crate::stack::StackConfig;
use pollux_node::Opened;
use pollux_node::config::{AddressSetting, InterfaceSettings, Mode, NodeConfig, Prefix};
use pollux_wire::ip::ipv6::IPV6_MTU_MIN;
use pollux_wire::keys::PKey;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

/// A device that an application uses by itself, or several, as a file says.
#[derive(Clone, Debug)]
pub struct Node {
    plan: Plan,
}

#[derive(Clone, Debug)]
enum Plan {
    Device(String),
    File { name: String, config: NodeConfig },
}

/// What an interface is to be. It is opened by [`Setup::up`].
#[derive(Clone, Debug)]
pub struct Setup {
    settings: InterfaceSettings,
    stack: StackConfig,
    wrong: Option<Wrong>,
    /// The longest packet, whatever limits say.
    mtu_max: u32,
    timeout: Duration,
}

/// What is wrong with it already.
#[derive(Clone, Debug)]
enum Wrong {
    Address(String),
    Interface(String),
}

impl From<Wrong> for UpError {
    fn from(wrong: Wrong) -> Self {
        match wrong {
            Wrong::Address(text) => Self::Address(text),
            Wrong::Interface(why) => Self::Interface(why),
        }
    }
}

impl Node {
    /// A device by its name, which is opened with its interface; or a file, as `pollux run` takes
    /// it ([`pollux_node::config`]).
    ///
    /// | name | what it is |
    /// |---|---|
    /// | `mlx5_0:1` | an adapter in hardware, and its port; with the feature `hca` of this crate |
    /// | `soft:PATH@NODE` | a port of a fabric that runs as `pollux fabric --socket PATH` |
    /// | `soft:` | a port of a fabric of this process alone: one host after the other, up to 16 |
    /// | `NAME.toml` | whatever that file says of each interface |
    pub fn open(name: &str) -> Result<Self, UpError> {
        let plan = match Path::new(name).extension() {
            Some(extension) if extension == "toml" => {
                let config = NodeConfig::open(Path::new(name)).map_err(UpError::File)?;
                Plan::File { name: name.into(), config }
            }
            _ => Plan::Device(name.into()),
        };
        Ok(Self { plan })
    }

    /// An interface: of a file, the one that has this name there; else one at the device, in the
    /// default partition, with datagrams only, and the name is yours to choose. Each opens its
    /// device for itself, so of several at one port only one can be up.
    pub fn interface(&self, name: &str) -> Setup {
        let (stack, timeout) = (StackConfig::default(), Duration::from_secs(10));
        let (device, known) = match &self.plan {
            Plan::Device(device) => (device.clone(), None),
            Plan::File { config, .. } => (String::new(), config.interfaces.get(name)),
        };
        let wrong = match &self.plan {
            Plan::File { name: file, config } if known.is_none() => {
                let names: Vec<_> = config.interfaces.keys().map(String::as_str).collect();
                let names = names.join(", ");
                Some(Wrong::Interface(format!("{file} has no interface {name:?}, but {names}")))
            }
            _ => None,
        };
        let settings = known.cloned().unwrap_or_else(|| InterfaceSettings {
            device,
            pkey: PKey::DEFAULT,
            mode: Mode::Ud,
            mtu: stack.mtu,
            workers: 1,
            peer: Vec::new(),
            address: Vec::new(),
            router: Vec::new(),
            neighbor: Vec::new(),
            ipv6: true,
        });
        let stack = StackConfig { mtu: settings.mtu, ..stack };
        Setup { mtu_max: settings.mtu, settings, stack, wrong, timeout }
    }
}

impl Setup {
    /// One more address, with the length of its prefix: `10.0.0.1/24`; or `dhcp`, to ask a server.
    #[must_use]
    pub fn address(mut self, text: &str) -> Self {
        let parts = text.split_once('/');
        let parts = parts.and_then(|(ip, len)| Some((ip.parse().ok()?, len.parse().ok()?)));
        let bits = |ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 };
        match parts.filter(|(ip, len)| (1..=bits(*ip)).contains(len)) {
            Some((ip, len)) => {
                self.settings.address.push(AddressSetting::Fixed(Prefix { ip, len }));
            }
            None if text == "dhcp" => self.settings.address.push(AddressSetting::Dhcp),
            None => self.wrong = self.wrong.or_else(|| Some(Wrong::Address(text.into()))),
        }
        self
    }

    /// Where packets go that are for no neighbor.
    #[must_use]
    pub fn router(mut self, router: IpAddr) -> Self {
        self.settings.router.push(router);
        self
    }

    /// How packets go to peers that offer more than datagrams.
    #[must_use]
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.settings.mode = mode;
        self
    }

    /// The partition.
    #[must_use]
    pub const fn partition(mut self, pkey: PKey) -> Self {
        self.settings.pkey = pkey;
        self
    }

    /// Limits of its sockets; where several workers serve it, of each one's.
    #[must_use]
    pub fn limits(mut self, stack: StackConfig) -> Self {
        self.settings.mtu = stack.mtu.clamp(IPV6_MTU_MIN, self.mtu_max);
        self.stack = StackConfig { mtu: self.settings.mtu, ..stack };
        self
    }

    /// How long to wait for it to come up.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Opens the device and waits until the interface is up and its addresses may be used.
    pub fn up(self) -> Result<Interface, UpError> {
        match self.wrong {
            Some(wrong) => Err(wrong.into()),
            None => {
                let opened = pollux_node::open(&self.settings.device).map_err(UpError::Open)?;
                Interface::open(opened, &self.settings, self.stack, self.timeout)
            }
        }
    }

    /// The same with a thread of its own that serves it, for sockets that any thread can hold.
    pub fn up_pinned(self, config: pinned::Config) -> Result<pinned::Interface, UpError> {
        if let Some(wrong) = self.wrong {
            return Err(wrong.into());
        }
        let opened = pollux_node::open(&self.settings.device).map_err(UpError::Open)?;
        self.up_pinned_at(opened, config)
    }

    /// The same at a device that is open already, such as one that wraps another.
    pub fn up_pinned_at(
        self,
        opened: Opened,
        config: pinned::Config,
    ) -> Result<pinned::Interface, UpError> {
        match self.wrong {
            Some(wrong) => Err(wrong.into()),
            None => {
                let plan = pinned::Plan {
                    opened,
                    settings: self.settings,
                    stack: self.stack,
                    timeout: self.timeout,
                    config,
                };
                pinned::Interface::open(plan)
            }
        }
    }
}
