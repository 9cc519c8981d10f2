//! An Ethernet device: found by its name, opened by the best method that works, and checked
//! regularly.
//!
//! ```text
//!   auto: AF_XDP native, zero-copy --> native --> generic --> packet socket
//! ```
//!
//! Each method is tried if the one before is refused, and the reason is kept for reports. With
//! AF_XDP, the kernel does not see the frames that the node takes. With a packet socket, it does,
//! so the kernel must have no addresses at the device, or has to drop the packets (README).
//!
//! Queue N of the device belongs to worker N modulo the number of workers. The kernel separates the
//! frames of a VLAN: the program at the device does so, or the filter of the socket. A device has
//! one program, so only the first of several interfaces at the device can use AF_XDP.

use super::frame_queue::FrameQueue;
use crate::config::{FrameAccess, InterfaceSettings};
use pollux_mem::net_device::{NetDevice, NetDeviceSocket};
use pollux_mem::packet_socket::PacketSocket;
use pollux_mem::system_call::CallError;
use pollux_mem::xdp::{FRAME_BYTES_MAX, QUEUES_MAX, XdpAttachMode, XdpProgram, XdpSocket};
use pollux_wire::ethernet::{EthernetFrame, MacAddress};
use rustix::io::Errno;
use std::fmt;

/// The longest packet that AF_XDP takes, with a VLAN tag, too.
pub(crate) const XDP_MTU_MAX: usize = FRAME_BYTES_MAX - EthernetFrame::header_len(Some(0));

/// The reason why a device cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EthernetError {
    #[error("there is no network device {0}; add it")]
    Missing(String),
    #[error("{0} is no device of Ethernet; name another one")]
    NotEthernet(String),
    #[error("cannot receive and send frames of {0}: {1}{advice}", advice = advice(.1.errno))]
    Call(String, CallError),
    /// The device of this name, its address or its MTU has changed.
    #[error("{0} has another address or MTU than before")]
    Replaced(String),
}

const fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::PERM | Errno::ACCESS => {
            "; give the process CAP_NET_RAW, and CAP_NET_ADMIN and CAP_BPF for AF_XDP"
        }
        Errno::BUSY => "; another program is at the device",
        Errno::NOBUFS => "; raise the limit of locked memory",
        _ => "",
    }
}

/// The method by which frames of a device are received and sent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Method {
    Xdp { mode: XdpAttachMode, is_zero_copy: bool },
    Packets,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Xdp { is_zero_copy: true, .. } => "AF_XDP, zero-copy",
            Self::Xdp { mode: XdpAttachMode::Native, .. } => "AF_XDP, native",
            Self::Xdp { mode: XdpAttachMode::Generic, .. } => "AF_XDP, generic",
            Self::Packets => "AF_PACKET",
        })
    }
}

#[derive(Debug)]
pub(super) struct EthernetDevice {
    name: String,
    devices: NetDeviceSocket,
    device: NetDevice,
    address: MacAddress,
    method: Method,
    /// Why a better method was refused.
    refused: Option<CallError>,
    /// The program leaves the device when it is dropped.
    _program: Option<XdpProgram>,
    /// Makes the device receive frames to all groups, as long as it is open.
    _groups: Option<PacketSocket>,
}

impl EthernetDevice {
    /// Opens the device of an interface, with a frame queue for each worker.
    pub(super) fn open(
        settings: &InterfaceSettings,
    ) -> Result<(Self, Vec<FrameQueue>), EthernetError> {
        let name = settings.device.clone();
        let failed = |error| EthernetError::Call(name.clone(), error);
        let socket = |errno| failed(CallError { call: "socket", errno });
        let devices = NetDeviceSocket::open().map_err(socket)?;
        let device = devices.read(&name).map_err(|errno| match errno {
            Errno::NODEV => EthernetError::Missing(name.clone()),
            errno => failed(CallError { call: "ioctl", errno }),
        })?;
        let Some(address) = device.address.map(MacAddress) else {
            return Err(EthernetError::NotEthernet(name));
        };
        let opening = Opening {
            device: device.index,
            vlan: settings.vlan,
            frame_bytes: device.mtu as usize + EthernetFrame::header_len(Some(0)),
            workers: settings.workers,
        };
        let mut refused = None;
        for method in methods(settings.frames) {
            match opening.open(&method) {
                Ok(Opened { program, groups, queues }) => {
                    let device = Self {
                        name,
                        devices,
                        device,
                        address,
                        method,
                        refused,
                        _program: program,
                        _groups: groups,
                    };
                    return Ok((device, queues));
                }
                Err(error) => refused = Some(error),
            }
        }
        let nothing = CallError { call: "socket", errno: Errno::OPNOTSUPP };
        Err(failed(refused.unwrap_or(nothing)))
    }

    pub(super) const fn address(&self) -> MacAddress {
        self.address
    }

    pub(super) const fn mtu(&self) -> u32 {
        self.device.mtu
    }

    /// The method, for reports.
    pub(super) fn method(&self) -> String {
        let Self { name, method, refused, .. } = self;
        match refused {
            None => format!("frames pass to and from {name} by {method}"),
            Some(error) => format!("frames pass to and from {name} by {method}, since {error}"),
        }
    }

    /// Why no frame passes now; `None` if frames pass. Fails if the device is no longer the same.
    pub(super) fn look(&self) -> Result<Option<String>, EthernetError> {
        let Self { name, device, .. } = self;
        let now = self.devices.read(name).map_err(|errno| match errno {
            Errno::NODEV => EthernetError::Missing(name.clone()),
            errno => EthernetError::Call(name.clone(), CallError { call: "ioctl", errno }),
        })?;
        if (now.index, now.mtu, now.address) != (device.index, device.mtu, device.address) {
            return Err(EthernetError::Replaced(name.clone()));
        }
        Ok(match (now.is_up, now.has_carrier) {
            (false, _) => Some(format!("{name} is down; `ip link set {name} up`")),
            (true, false) => Some(format!("{name} has no carrier; check its cable")),
            (true, true) => None,
        })
    }
}

/// The methods to try, best first.
fn methods(access: FrameAccess) -> Vec<Method> {
    let xdp = |mode, is_zero_copy| Method::Xdp { mode, is_zero_copy };
    let (native, generic) = (XdpAttachMode::Native, XdpAttachMode::Generic);
    match access {
        FrameAccess::Auto => {
            vec![xdp(native, true), xdp(native, false), xdp(generic, false), Method::Packets]
        }
        FrameAccess::ZeroCopy => vec![xdp(native, true)],
        FrameAccess::Native => vec![xdp(native, false)],
        FrameAccess::Generic => vec![xdp(generic, false)],
        FrameAccess::Packet => vec![Method::Packets],
    }
}

/// The parameters of an attempt.
struct Opening {
    device: u32,
    vlan: Option<u16>,
    frame_bytes: usize,
    workers: u8,
}

/// The result of an attempt.
struct Opened {
    program: Option<XdpProgram>,
    groups: Option<PacketSocket>,
    queues: Vec<FrameQueue>,
}

impl Opening {
    fn open(&self, method: &Method) -> Result<Opened, CallError> {
        match *method {
            Method::Xdp { mode, is_zero_copy } => self.open_xdp(mode, is_zero_copy),
            Method::Packets => self.open_packets(),
        }
    }

    fn open_xdp(&self, mode: XdpAttachMode, is_zero_copy: bool) -> Result<Opened, CallError> {
        let Self { device, vlan, frame_bytes, workers } = *self;
        let mut sockets: Vec<Vec<XdpSocket>> = (0..workers).map(|_| Vec::new()).collect();
        for queue in 0..QUEUES_MAX {
            match XdpSocket::open(device, queue, frame_bytes, is_zero_copy) {
                Ok(socket) => sockets[queue as usize % usize::from(workers)].push(socket),
                // The device has no more queues.
                Err(CallError { errno: Errno::INVAL, .. }) if queue > 0 => break,
                Err(error) => return Err(error),
            }
        }
        // The sockets come first, so that no program is attached if one of them is refused.
        let program = XdpProgram::attach(device, vlan, mode)?;
        for (worker, of_worker) in (0..).zip(&sockets) {
            for (nth, socket) in (0..).zip(of_worker) {
                program.set_socket(worker + nth * u32::from(workers), socket)?;
            }
        }
        let mut queues = Vec::new();
        for xdp in sockets {
            let sends = xdp.is_empty().then(|| PacketSocket::for_sending(device)).transpose()?;
            let queue = FrameQueue::of_xdp(xdp, sends);
            queues.push(queue.map_err(|errno| CallError { call: "epoll", errno })?);
        }
        let groups = Some(PacketSocket::for_sending(device)?);
        Ok(Opened { program: Some(program), groups, queues })
    }

    /// One socket for each worker; the kernel spreads flows over them.
    fn open_packets(&self) -> Result<Opened, CallError> {
        let Self { device, vlan, frame_bytes, workers } = *self;
        let mut group = None;
        let mut queues = Vec::new();
        for _ in 0..workers {
            let socket = PacketSocket::open(device, vlan, frame_bytes)?;
            if workers > 1 {
                let joined = socket.join(group);
                let call = "setsockopt PACKET_FANOUT";
                group = Some(joined.map_err(|errno| CallError { call, errno })?);
            }
            queues.push(FrameQueue::of_packets(socket));
        }
        Ok(Opened { program: None, groups: None, queues })
    }
}
