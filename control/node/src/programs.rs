//! Programs of rdma-core at a port of a fabric: what they find in their environment.
//!
//! A library that is preloaded into the program, `pollux-connectx`, plays the kernel's interfaces
//! and the adapter. Here is what stands around it: the folder in the form of `/sys` in which
//! libibverbs finds the device, and the variables that name all of it.

use crate::device::{self, DeviceOpenError};
use pollux_verbs::{Device, PortAttributes, VerbsError};
use pollux_wire::address::{Gid, Guid};
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::PortState;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The file name of the preloaded library.
pub const LIBRARY: &str = "libpollux_connectx.so";

/// The wait for the port to be active: so often so long.
const ACTIVE_WAITS_MAX: u32 = 1000;
const ACTIVE_WAIT: Duration = Duration::from_millis(5);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    #[error("{0}")]
    Device(#[from] DeviceOpenError),
    #[error("{0}")]
    Port(#[from] VerbsError),
    #[error("{}: {error}", folder.display())]
    Folder { folder: PathBuf, error: io::Error },
    #[error(
        "no {LIBRARY} beside this program or in /usr/lib/pollux; `cargo build --release` makes it"
    )]
    NoLibrary,
}

/// The environment of programs at one port, for as long as this is held.
#[derive(Debug)]
pub struct ProgramEnvironment {
    folder: PathBuf,
    variables: Vec<(&'static str, String)>,
}

/// A port as its files in `/sys` describe it.
struct PortFiles {
    node_guid: Guid,
    attributes: PortAttributes,
    gids: Vec<Gid>,
    pkeys: Vec<PKey>,
}

impl ProgramEnvironment {
    /// For programs that open the adapter `device`, such as `mlx5_0`, which is the port with the
    /// name `port`, such as `soft:PATH@NODE`.
    pub fn new(port: &str, device: &str, library: &Path) -> Result<Self, ProgramError> {
        let files = PortFiles::read(port)?;
        let folder = new_folder()?;
        // From here on, dropping this removes the folder.
        let mut environment = Self { folder, variables: Vec::new() };
        if let Err(error) = write_tree(&environment.folder, device, &files) {
            return Err(ProgramError::Folder { folder: environment.folder.clone(), error });
        }
        let mut hasher = DefaultHasher::new();
        port.hash(&mut hasher);
        environment.variables = vec![
            ("SYSFS_PATH", environment.folder.display().to_string()),
            ("POLLUX_DEVICE", port.into()),
            // All programs at the port share it.
            ("POLLUX_PORT_GROUP", hasher.finish().to_string()),
            ("LD_PRELOAD", library.display().to_string()),
        ];
        Ok(environment)
    }

    /// The variables that programs need.
    pub fn variables(&self) -> &[(&'static str, String)] {
        &self.variables
    }
}

impl Drop for ProgramEnvironment {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The library, beside the program that runs or where a package puts it.
pub fn find_library() -> Result<PathBuf, ProgramError> {
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new("."));
    let folders = [beside.to_owned(), beside.join("deps"), "/usr/lib/pollux".into()];
    let found = folders.into_iter().map(|folder| folder.join(LIBRARY)).find(|file| file.exists());
    found.ok_or(ProgramError::NoLibrary)
}

impl PortFiles {
    fn read(port: &str) -> Result<Self, ProgramError> {
        let mut opened = device::open(port)?;
        // The subnet manager brings the port up after this opens it.
        for _ in 0..ACTIVE_WAITS_MAX {
            if opened.device.port(opened.port)?.state == PortState::ACTIVE {
                break;
            }
            opened.device.wait(ACTIVE_WAIT)?;
        }
        let device: &dyn Device = &*opened.device;
        let attributes = device.port(opened.port)?;
        let gids = (0..attributes.gids).map(|index| device.gid(opened.port, index));
        let pkeys = (0..attributes.pkeys).map(|index| device.pkey(opened.port, index));
        Ok(Self {
            node_guid: device.attributes().node_guid,
            gids: gids.collect::<Result<_, _>>()?,
            pkeys: pkeys.collect::<Result<_, _>>()?,
            attributes,
        })
    }
}

/// Writes the files that libibverbs, libibumad and tools read (Linux
/// `Documentation/ABI/stable/sysfs-class-infiniband`).
fn write_tree(root: &Path, device: &str, files: &PortFiles) -> io::Result<()> {
    // The provider library is chosen by this: a ConnectX-6.
    const MODALIAS: &str = "pci:v000015B3d0000101Bsv000015B3sd00000007bc02sc07i00";
    let verbs = root.join("class/infiniband_verbs");
    let card = root.join("class/infiniband").join(device);
    let port = card.join("ports/1");
    for folder in
        [verbs.join("uverbs0"), card.join("device"), port.join("gids"), port.join("pkeys")]
    {
        fs::create_dir_all(folder)?;
    }
    let write = |file: PathBuf, text: &str| fs::write(file, format!("{text}\n"));
    write(verbs.join("abi_version"), "6")?;
    write(verbs.join("uverbs0/dev"), "231:192")?;
    write(verbs.join("uverbs0/ibdev"), device)?;
    write(verbs.join("uverbs0/abi_version"), "1")?;
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
    let PortAttributes { state, lid, lmc, sm_lid, sm_sl, .. } = files.attributes;
    for (name, text) in [
        ("link_layer", "InfiniBand".to_owned()),
        ("state", format!("{}: {state}", state.0)),
        ("phys_state", "5: LinkUp".into()),
        ("lid", format!("{:#x}", lid.0)),
        ("lid_mask_count", lmc.to_string()),
        ("sm_lid", format!("{:#x}", sm_lid.0)),
        ("sm_sl", sm_sl.to_string()),
        ("rate", "100 Gb/sec (4X EDR)".into()),
        ("cap_mask", "0x2259e848".into()),
    ] {
        write(port.join(name), &text)?;
    }
    for (index, gid) in files.gids.iter().enumerate() {
        write(port.join(format!("gids/{index}")), &colon_separated(&gid.0))?;
    }
    for (index, pkey) in files.pkeys.iter().enumerate() {
        write(port.join(format!("pkeys/{index}")), &format!("{:#06x}", pkey.0))?;
    }
    Ok(())
}

/// Four hexadecimal digits at a time.
fn colon_separated(bytes: &[u8]) -> String {
    let pairs = bytes.chunks_exact(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
    pairs.collect::<Vec<_>>().join(":")
}

fn new_folder() -> Result<PathBuf, ProgramError> {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let name = format!("pollux-sys-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    // A process with this number may have left one.
    let _ = fs::remove_dir_all(&folder);
    match fs::create_dir(&folder) {
        Ok(()) => Ok(folder),
        Err(error) => Err(ProgramError::Folder { folder, error }),
    }
}
