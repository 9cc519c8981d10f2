//! The environment of rdma-core programs at a port of a software fabric.
//!
//! The library `pollux-connectx`, preloaded into a program, imitates the adapter and the kernel's
//! interfaces to it. This module makes the rest: a folder in the form of `/sys`, in which
//! libibverbs finds the device, and the variables that name the folder and the port. `port_files`
//! has the files in that folder that change.

mod port_files;

use crate::admin::client::AskError;
use crate::config::Prefix;
use crate::device::{self, DeviceOpenError, Opened};
use crate::rdma_cm::{RdmaCmService, RdmaCmServiceError};
use pollux_fabric::process::AgentPort;
use pollux_verbs::{Device, VerbsError};
use pollux_wire::address::{Gid, Guid};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::PortState;
use port_files::PortFiles;
pub use port_files::port_request;
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The file name of the preloaded library.
pub const LIBRARY: &str = "libpollux_connectx.so";

/// The line that a program writes to the file of missing parts when it opens the adapter.
const OPENED: &str = "opened";

/// The wait for the port to become active: at most this many waits, each this long.
const ACTIVE_WAITS_MAX: u32 = 1000;
const ACTIVE_WAIT: Duration = Duration::from_millis(5);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    #[error("{0}")]
    Device(#[from] DeviceOpenError),
    #[error("{0}")]
    Port(#[from] VerbsError),
    #[error("{0}")]
    Fabric(#[from] AskError),
    #[error("{0}")]
    Host(#[from] RdmaCmServiceError),
    #[error("{0:?} is no port of a fabric; write soft:PATH@NODE[:PORT]")]
    Name(String),
    #[error("{}: {error}", folder.display())]
    Folder { folder: PathBuf, error: io::Error },
    #[error(
        "no {LIBRARY} beside this program or in ../lib/pollux; `cargo build --release --package \
         pollux-connectx` makes it"
    )]
    NoLibrary,
}

/// The environment of programs at one port, until this is dropped.
#[derive(Debug)]
pub struct ProgramEnvironment {
    folder: PathBuf,
    port: PortFiles,
    variables: Vec<(&'static str, String)>,
    /// The interface and the connection manager of the host, if it has addresses.
    host: Option<RdmaCmService>,
    /// Keeps the cable of the port plugged in while no program has the port open, as for a real
    /// card.
    _held: AgentPort,
}

/// Requests of programs that could not be fulfilled.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MissingParts {
    /// Whether a program opened the adapter at all.
    pub is_opened: bool,
    /// Missing commands, pages and files, and how often each was requested.
    pub requests: BTreeMap<String, usize>,
}

/// The attributes of a port that do not change.
struct PortTables {
    node_guid: Guid,
    gids: Vec<Gid>,
    pkeys: Vec<PKey>,
}

impl ProgramEnvironment {
    /// Makes an environment in which programs find the adapter `device`, such as `mlx5_0`, at the
    /// port `port` of a fabric, such as `soft:PATH@NODE`.
    pub fn new(port: &str, device: &str, library: &Path) -> Result<Self, ProgramError> {
        Self::with_addresses(port, device, library, &[])
    }

    /// Does the same at a host with these IPoIB addresses, by which programs can connect.
    pub fn with_addresses(
        port: &str,
        device: &str,
        library: &Path,
        addresses: &[Prefix],
    ) -> Result<Self, ProgramError> {
        let mut hasher = DefaultHasher::new();
        port.hash(&mut hasher);
        // All programs at the port have the same secret.
        let group = hasher.finish();
        let (mut opened, held) = device::open_in_group(port, group)?;
        let tables = PortTables::read(&mut opened)?;
        // The interface needs queue pair 1, which only the first context of a port has.
        let opened = (!addresses.is_empty()).then_some(opened);
        let folder = new_folder()?;
        let failed = |error| ProgramError::Folder { folder: folder.clone(), error };
        let files = folder.join("class/infiniband").join(device).join("ports/1");
        let files = PortFiles::new(&folder, files, port)?;
        // From here on, dropping this removes the folder.
        let (folder_of_it, variables) = (folder.clone(), Vec::new());
        let mut environment =
            Self { port: files, folder: folder_of_it, variables, host: None, _held: held };
        write_tree(&folder, device, &tables).map_err(failed)?;
        let details = environment.port.read()?;
        environment.port.write(&details).map_err(failed)?;
        environment.variables = vec![
            ("SYSFS_PATH", environment.folder.display().to_string()),
            ("POLLUX_DEVICE", port.into()),
            ("POLLUX_PORT_GROUP", group.to_string()),
            ("LD_PRELOAD", library.display().to_string()),
        ];
        if let Some(opened) = opened {
            write_rdma_cm(&folder).map_err(failed)?;
            let device = Box::new(opened);
            let opened = Opened { device, port: 1, fabric: None, management: None };
            let socket = folder.join("rdma_cm");
            let host = RdmaCmService::start((port, group), opened, addresses, &socket)?;
            environment.host = Some(host);
            environment.variables.push(("POLLUX_RDMA_CM", socket.display().to_string()));
        }
        Ok(environment)
    }

    /// Makes programs note requests that are not fulfilled, for [`ProgramEnvironment::missing`].
    pub fn note_missing(&mut self) {
        self.variables.push(("POLLUX_MISSING", self.missing_file().display().to_string()));
    }

    /// The requests that programs have noted until now.
    pub fn missing(&self) -> MissingParts {
        let mut parts = MissingParts::default();
        // Without a file, nothing was noted.
        let notes = fs::read(self.missing_file()).unwrap_or_default();
        for line in String::from_utf8_lossy(&notes).lines() {
            match line {
                OPENED => parts.is_opened = true,
                request => *parts.requests.entry(request.into()).or_insert(0) += 1,
            }
        }
        parts
    }

    fn missing_file(&self) -> PathBuf {
        self.folder.join("missing")
    }

    /// Updates the files of the port. Returns whether its state is settled. If not, the port is
    /// coming up, and the caller should call this again soon.
    pub fn refresh(&self) -> bool {
        match self.port.read() {
            Ok(port) => {
                let _ = self.port.write(&port);
                port.state == PortState::ACTIVE.0
            }
            Err(AskError::Absent(..)) => self.port.write_down().is_ok(),
            // The next call may succeed.
            Err(_) => true,
        }
    }

    /// The variables that programs need.
    pub fn variables(&self) -> &[(&'static str, String)] {
        &self.variables
    }
}

impl Drop for ProgramEnvironment {
    fn drop(&mut self) {
        self.host = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Finds the library beside the running program, or where a package installs it: in `lib/pollux`
/// beside the program's folder `bin`.
pub fn find_library() -> Result<PathBuf, ProgramError> {
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new("."));
    let folders = [beside.to_owned(), beside.join("deps"), beside.join("../lib/pollux")];
    let found = folders.into_iter().map(|folder| folder.join(LIBRARY)).find(|file| file.exists());
    found.ok_or(ProgramError::NoLibrary)
}

impl PortTables {
    fn read(device: &mut dyn Device) -> Result<Self, ProgramError> {
        // A software device has one port, number 1, whichever port of the fabric node it is.
        const PORT: u8 = 1;
        // The subnet manager brings the port up only after it was opened.
        for _ in 0..ACTIVE_WAITS_MAX {
            if device.port(PORT)?.state == PortState::ACTIVE {
                break;
            }
            device.wait(ACTIVE_WAIT)?;
        }
        let attributes = device.port(PORT)?;
        let gids = (0..attributes.gids).map(|index| device.gid(PORT, index));
        let pkeys = (0..attributes.pkeys).map(|index| device.pkey(PORT, index));
        Ok(Self {
            node_guid: device.attributes().node_guid,
            gids: gids.collect::<Result<_, _>>()?,
            pkeys: pkeys.collect::<Result<_, _>>()?,
        })
    }
}

/// Writes the files that libibverbs, libibumad and tools read (Linux
/// `Documentation/ABI/stable/sysfs-class-infiniband`).
fn write_tree(root: &Path, device: &str, files: &PortTables) -> io::Result<()> {
    // libibverbs chooses the provider library by this; it is that of a ConnectX-6.
    const MODALIAS: &str = "pci:v000015B3d0000101Bsv000015B3sd00000007bc02sc07i00";
    // As for a real card, class folders have links to the bus, where UCX reads the card's model.
    const BUS_ADDRESS: &str = "0000:01:00.0";
    let bus = Path::new("devices/pci0000:00").join(BUS_ADDRESS);
    let verbs = root.join("class/infiniband_verbs");
    let mads = root.join("class/infiniband_mad");
    let class = root.join("class/infiniband");
    let card = root.join(&bus).join("infiniband").join(device);
    let port = card.join("ports/1");
    for folder in [
        verbs.join("uverbs0"),
        mads.join("umad0"),
        mads.join("issm0"),
        class.clone(),
        port.join("gids"),
        port.join("gid_attrs/types"),
        port.join("pkeys"),
        port.join("counters"),
    ] {
        fs::create_dir_all(folder)?;
    }
    symlink(Path::new("../..").join(bus).join("infiniband").join(device), class.join(device))?;
    symlink(Path::new("../../..").join(BUS_ADDRESS), card.join("device"))?;
    let write = |file: PathBuf, text: &str| fs::write(file, format!("{text}\n"));
    write(verbs.join("abi_version"), "6")?;
    write(verbs.join("uverbs0/dev"), "231:192")?;
    write(verbs.join("uverbs0/ibdev"), device)?;
    write(verbs.join("uverbs0/abi_version"), "1")?;
    write(mads.join("abi_version"), "5")?;
    for (file, number) in [("umad0", "231:0"), ("issm0", "231:64")] {
        write(mads.join(file).join("dev"), number)?;
        write(mads.join(file).join("ibdev"), device)?;
        write(mads.join(file).join("port"), "1")?;
    }
    let guid = colon_separated(&files.node_guid.0.to_be_bytes());
    for (name, text) in [
        ("node_type", "1: CA"),
        ("node_guid", &guid),
        ("sys_image_guid", &guid),
        ("node_desc", "Pollux"),
        ("fw_ver", "20.38.1002"),
        ("hca_type", "MT4123"),
        ("board_id", "MT_0000000223"),
        ("hw_rev", "0"),
        ("device/modalias", MODALIAS),
        ("device/vendor", "0x15b3"),
        ("device/device", "0x101b"),
    ] {
        write(card.join(name), text)?;
    }
    write(port.join("link_layer"), "InfiniBand")?;
    for (index, gid) in files.gids.iter().enumerate() {
        write(port.join(format!("gids/{index}")), &colon_separated(&gid.0))?;
        write(port.join(format!("gid_attrs/types/{index}")), "IB/RoCE v1")?;
    }
    for (index, pkey) in files.pkeys.iter().enumerate() {
        write(port.join(format!("pkeys/{index}")), &format!("{:#06x}", pkey.0))?;
    }
    Ok(())
}

/// Writes the files by which librdmacm finds the device of the connection manager.
fn write_rdma_cm(root: &Path) -> io::Result<()> {
    let folder = root.join("class/misc/rdma_cm");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("dev"), "10:58\n")?;
    fs::write(folder.join("abi_version"), "4\n")
}

/// Groups of four hexadecimal digits, separated by colons.
fn colon_separated(bytes: &[u8]) -> String {
    let pairs = bytes.chunks_exact(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
    pairs.collect::<Vec<_>>().join(":")
}

fn new_folder() -> Result<PathBuf, ProgramError> {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let name = format!("pollux-sys-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    // An earlier process with the same ID may have left a folder.
    let _ = fs::remove_dir_all(&folder);
    match fs::create_dir(&folder) {
        Ok(()) => Ok(folder),
        Err(error) => Err(ProgramError::Folder { folder, error }),
    }
}
