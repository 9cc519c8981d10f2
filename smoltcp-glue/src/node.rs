//! Opens a device, by name or by configuration file, and an interface on it.

use crate::admin::ProgramAdmin;
use crate::error::{UpError, check_keepalive};
use crate::interface::Interface;
use crate::pinned;
use crate::promise::Promise;
use crate::smoltcp;
use crate::stack::StackConfig;
use pollux_node::Opened;
use pollux_node::config::{
    AddressSetting, DEFAULT_DOMAIN, FrameAccess, InterfaceKind, InterfaceSettings, Mode,
    NodeConfig, Prefix, RpfMode,
};
use pollux_wire::ip::ipv6::IPV6_MTU_MIN;
use pollux_wire::keys::PKey;
use std::future::poll_fn;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread::Builder;
use std::time::Duration;

/// A device that the application opens, or the devices of a configuration file.
#[derive(Clone, Debug)]
pub struct Node {
    plan: Plan,
}

#[derive(Clone, Debug)]
enum Plan {
    Device(String),
    File { name: String, config: NodeConfig },
}

/// The settings of an interface. [`Setup::up`] opens it.
#[derive(Clone, Debug)]
pub struct Setup {
    name: String,
    settings: InterfaceSettings,
    stack: StackConfig,
    wrong: Option<Wrong>,
    /// The upper bound of the MTU, in bytes.
    mtu_max: u32,
    timeout: Duration,
    admin: Option<PathBuf>,
}

/// The first invalid setting; [`Setup::up`] returns it.
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
    /// Selects a device by name, or reads a configuration file of `pollux run`
    /// ([`pollux_node::config`]). The device is opened together with the interface.
    ///
    /// | name | device |
    /// |---|---|
    /// | `mlx5_0:1` | a hardware adapter and its port; needs the feature `hca` of this crate |
    /// | `soft:PATH@NODE` | a port of the fabric of `pollux fabric --socket PATH` |
    /// | `soft:` | the next port of a fabric inside this process, up to 16 |
    /// | `NAME.toml` | the device that the file gives for each interface |
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

    /// Selects an interface. With a configuration file, the name has to be in the file. With a
    /// device name, any name will do; the defaults are the default partition and mode UD. Each
    /// interface opens its device itself, so only one interface of a port can be up at a time.
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
                Some(Wrong::Interface(format!("{file} has no interface {name:?}; it has {names}")))
            }
            // Sockets do not apply the list: accepting it would promise a protection that is not
            // there.
            Plan::File { .. } if known.is_some_and(|one| one.acl_in.is_some()) => {
                let why = "its acl_in holds in `pollux run` alone; remove the key";
                Some(Wrong::Interface(format!("{name}: {why}")))
            }
            _ => None,
        };
        let settings = known.cloned().unwrap_or_else(|| InterfaceSettings {
            kind: InterfaceKind::Ipoib,
            device,
            management: None,
            pkey: PKey::DEFAULT,
            mode: Mode::Ud,
            mtu: stack.mtu,
            workers: 1,
            peer: Vec::new(),
            address: Vec::new(),
            router: Vec::new(),
            neighbor: Vec::new(),
            ipv6: true,
            domain: DEFAULT_DOMAIN.into(),
            acl_in: None,
            acl_out: None,
            rpf: RpfMode::Off,
            shadow: None,
            kernel_address: Vec::new(),
            vlan: None,
            frames: FrameAccess::Auto,
        });
        let stack = StackConfig { mtu: settings.mtu, ..stack };
        let (name, mtu_max) = (name.into(), settings.mtu);
        Setup { name, mtu_max, settings, stack, wrong, timeout, admin: None }
    }
}

impl Setup {
    /// Adds an address with its prefix length, such as `10.0.0.1/24`; or `dhcp`, for a DHCP lease.
    #[must_use]
    pub fn address(mut self, text: &str) -> Self {
        match Prefix::parse_address(text) {
            Some(prefix) => match prefix.no_host_reason() {
                None => self.settings.address.push(AddressSetting::Fixed(prefix)),
                Some(why) => {
                    let wrong = format!("no host can have {text}: {why}; write a host's address");
                    self.wrong = self.wrong.or(Some(Wrong::Interface(wrong)));
                }
            },
            None if text == "dhcp" => self.settings.address.push(AddressSetting::Dhcp),
            None => self.wrong = self.wrong.or_else(|| Some(Wrong::Address(text.into()))),
        }
        self
    }

    /// Adds a default router.
    #[must_use]
    pub fn router(mut self, router: IpAddr) -> Self {
        self.settings.router.push(router);
        self
    }

    /// Sets the mode for peers that support connected mode (RFC 4755).
    #[must_use]
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.settings.mode = mode;
        self
    }

    /// Sets the partition.
    #[must_use]
    pub const fn partition(mut self, pkey: PKey) -> Self {
        self.settings.pkey = pkey;
        self
    }

    /// Sets the limits of sockets. With several workers they apply to each worker.
    #[must_use]
    pub fn limits(mut self, stack: StackConfig) -> Self {
        self.settings.mtu = stack.mtu.clamp(IPV6_MTU_MIN, self.mtu_max);
        self.stack = StackConfig { mtu: self.settings.mtu, ..stack };
        self
    }

    /// Sets how long [`Setup::up`] waits for the interface to come up.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Opens an admin socket at this path, for programs of this user: `pollux show sockets --socket
    /// PATH` lists the sockets of the interface. By default, there is no admin socket.
    #[must_use]
    pub fn admin_socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.admin = Some(path.into());
        self
    }

    /// Opens the device, and waits until the interface is up and its addresses are usable.
    pub fn up(self) -> Result<Interface, UpError> {
        let setup = self.check()?;
        let admin = setup.open_admin()?;
        let opened = setup.settings.open_device().map_err(UpError::Open)?;
        Interface::open(opened, &setup.settings, &setup.stack, setup.timeout, admin)
    }

    /// Like [`Setup::up`], but returns a device for smoltcp's own stack.
    pub fn up_smoltcp(self) -> Result<smoltcp::Device, UpError> {
        let mtu = self.settings.mtu;
        smoltcp::Device::new(self.up()?, mtu).map_err(UpError::Thread)
    }

    /// Like [`Setup::up`], but with worker threads: any thread can use the sockets.
    pub fn up_pinned(self, config: pinned::Config) -> Result<pinned::Interface, UpError> {
        let setup = self.check()?;
        let opened = setup.settings.open_device().map_err(UpError::Open)?;
        setup.up_pinned_at(opened, config)
    }

    /// Like [`Setup::up_pinned`], but for a task: another thread waits until the interface is up.
    pub async fn up_pinned_async(
        self,
        config: pinned::Config,
    ) -> Result<pinned::Interface, UpError> {
        let (end, mut up) = Promise::new();
        let wait = move || end.keep(self.up_pinned(config));
        Builder::new().name("pollux-up".into()).spawn(wait).map_err(UpError::Thread)?;
        let up = poll_fn(|context| up.poll(context)).await;
        up.unwrap_or_else(|| Err(UpError::Worker("the thread that opens it has ended".into())))
    }

    /// Like [`Setup::up_pinned`], but on a device that is open already, such as a wrapper around
    /// another device.
    pub fn up_pinned_at(
        self,
        opened: Opened,
        config: pinned::Config,
    ) -> Result<pinned::Interface, UpError> {
        let setup = self.check()?;
        let admin = setup.open_admin()?;
        let Self { settings, stack, timeout, .. } = setup;
        pinned::Interface::open(pinned::Plan { opened, settings, stack, timeout, config, admin })
    }

    fn open_admin(&self) -> Result<Option<ProgramAdmin>, UpError> {
        self.admin.as_deref().map(|path| ProgramAdmin::open(&self.name, path)).transpose()
    }

    fn check(mut self) -> Result<Self, UpError> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong.into());
        }
        match check_keepalive(self.stack.tcp.keepalive) {
            Ok(()) => Ok(self),
            Err(why) => Err(UpError::Interface(why.to_string())),
        }
    }
}
