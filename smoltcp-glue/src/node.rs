//! Where sockets come from: a device by its name, and an interface of it.

use crate::error::UpError;
use crate::interface::Interface;
use crate::pinned;
use crate::stack::StackConfig;
use pollux_node::Opened;
use pollux_node::config::{AddressSetting, InterfaceSettings, Mode, Prefix};
use pollux_wire::ip::ipv6::IPV6_MTU_MIN;
use pollux_wire::keys::PKey;
use std::net::IpAddr;
use std::time::Duration;

/// A device that an application uses by itself.
#[derive(Clone, Debug)]
pub struct Node {
    device: String,
}

/// What an interface is to be. It is opened by [`Setup::up`].
#[derive(Clone, Debug)]
pub struct Setup {
    settings: InterfaceSettings,
    stack: StackConfig,
    bad_address: Option<String>,
    patience: Duration,
}

impl Node {
    /// A device by its name. It is opened with its interface.
    ///
    /// | name | device |
    /// |---|---|
    /// | `mlx5_0:1` | an adapter in hardware, and its port; with the feature `hca` of this crate |
    /// | `soft:PATH@NODE` | a port of a fabric that runs as `pollux fabric --socket PATH` |
    /// | `soft:` | a port of a fabric of this process alone: one host after the other, up to 16 |
    pub fn open(device: &str) -> Self {
        Self { device: device.into() }
    }

    /// An interface at this device, in the default partition, with datagrams only.
    pub fn interface(&self) -> Setup {
        let (stack, patience) = (StackConfig::default(), Duration::from_secs(10));
        let settings = InterfaceSettings {
            device: self.device.clone(),
            pkey: PKey::DEFAULT,
            mode: Mode::Ud,
            mtu: stack.mtu,
            peer: Vec::new(),
            address: Vec::new(),
            router: Vec::new(),
            neighbor: Vec::new(),
            ipv6: true,
        };
        Setup { settings, stack, bad_address: None, patience }
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
            None => self.bad_address = Some(text.into()),
        }
        self
    }

    /// Where packets go that are for no neighbour.
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

    /// Limits of its sockets.
    #[must_use]
    pub fn limits(mut self, stack: StackConfig) -> Self {
        self.settings.mtu = stack.mtu.clamp(IPV6_MTU_MIN, StackConfig::default().mtu);
        self.stack = stack;
        self
    }

    /// How long to wait for it to come up.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Opens the device and waits until the interface is up and its addresses may be used.
    pub fn up(self) -> Result<Interface, UpError> {
        match self.bad_address {
            Some(text) => Err(UpError::Address(text)),
            None => {
                let opened = pollux_node::open(&self.settings.device).map_err(UpError::Open)?;
                Interface::open(opened, &self.settings, self.stack, self.patience)
            }
        }
    }

    /// The same with a thread of its own that serves it, for sockets that any thread can hold.
    pub fn up_pinned(self, config: pinned::Config) -> Result<pinned::Interface, UpError> {
        let opened = pollux_node::open(&self.settings.device).map_err(UpError::Open)?;
        self.up_pinned_at(opened, config)
    }

    /// The same at a device that is open already, such as one that wraps another.
    pub fn up_pinned_at(
        self,
        opened: Opened,
        config: pinned::Config,
    ) -> Result<pinned::Interface, UpError> {
        match self.bad_address {
            Some(text) => Err(UpError::Address(text)),
            None => {
                let plan = pinned::Plan {
                    opened,
                    settings: self.settings,
                    stack: self.stack,
                    patience: self.patience,
                    config,
                };
                pinned::Interface::open(plan)
            }
        }
    }
}
