//! Reports requests of the program that are not supported, for `pollux exec --doctor`.
//!
//! The environment variable `POLLUX_MISSING` names a file. Each failed request for a command, a
//! page or a file adds a line to it. Without the variable, a failed call costs one comparison more.
//!
//! This file makes system calls directly, because libc's functions lead back to this library.

use crate::abi::{self, command};
use crate::doorbell::PAGE_BYTES;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt::Display;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use zerocopy::FromBytes;

/// The environment variable that names the file.
const FILE_VARIABLE: &str = "POLLUX_MISSING";
/// The environment variable that names the folder used in place of `/sys`.
const SYSFS_VARIABLE: &str = "SYSFS_PATH";
/// The line that says that the program has opened the adapter.
const OPENED: &str = "opened";
/// The maximum number of lines of a process.
const LINES_MAX: u32 = 100_000;

const SYSFS: &str = "/sys";
const DEVICES: &str = "/dev/infiniband";
/// The folders below `class` in [`SYSFS`] that belong to adapters.
const CLASSES: [&str; 5] =
    ["infiniband", "infiniband_verbs", "infiniband_mad", "infiniband_cm", "misc/rdma_cm"];

struct Report {
    file: OwnedFd,
    sysfs: PathBuf,
}

static REPORT: LazyLock<Option<Report>> = LazyLock::new(Report::open);

impl Report {
    #[expect(clippy::disallowed_methods, reason = "the library begins here: its variables")]
    fn open() -> Option<Self> {
        let file = std::env::var_os(FILE_VARIABLE)?;
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::open(&file, flags, Mode::RUSR | Mode::WUSR).ok()?;
        let sysfs = std::env::var_os(SYSFS_VARIABLE).unwrap_or_else(|| SYSFS.into());
        Some(Self { file, sysfs: sysfs.into() })
    }

    /// Adds a line, in a single write because processes share the file.
    fn add(&self, line: impl Display) {
        static LINES: AtomicU32 = AtomicU32::new(0);
        if LINES.fetch_add(1, Ordering::Relaxed) < LINES_MAX {
            let _ = rustix::io::write(&self.file, format!("{line}\n").as_bytes());
        }
    }
}

/// Reports that the program has opened the adapter.
pub(crate) fn opened() {
    if let Some(report) = &*REPORT {
        report.add(OPENED);
    }
}

/// Reports a failed open of a file, if the file belongs to adapters.
pub(crate) fn file(folder: RawFd, path: &CStr, error: Errno) {
    if !matches!(error, Errno::NOENT | Errno::NXIO | Errno::NODEV) {
        return;
    }
    let (Some(report), Ok(path)) = (&*REPORT, path.to_str()) else { return };
    let mut path = Cow::from(Path::new(path));
    if path.is_relative() && folder >= 0 {
        let link = rustix::fs::readlink(format!("/proc/self/fd/{folder}"), Vec::new());
        let Ok(Ok(base)) = link.map(|link| link.into_string()) else { return };
        path = Path::new(&base).join(path).into();
    }
    if let Some(path) = missing_file(&path, &report.sysfs) {
        report.add(path.display());
    }
}

/// The path to report for a file of adapters, with `/sys` in place of the folder `sysfs`; `None`
/// for other files.
fn missing_file(path: &Path, sysfs: &Path) -> Option<PathBuf> {
    if path.starts_with(DEVICES) {
        return Some(path.into());
    }
    let below = path.strip_prefix(sysfs).or_else(|_| path.strip_prefix(SYSFS)).ok()?;
    let mut classes = CLASSES.iter().map(|class| Path::new("class").join(class));
    let is_ours = classes.any(|class| below.starts_with(class));
    is_ours.then(|| Path::new(SYSFS).join(below))
}

/// Reports a failed command, which is a `write` to the adapter.
pub(crate) fn command(bytes: &[u8], error: Errno) {
    let (Some(report), Some(name)) = (&*REPORT, error_name(error)) else { return };
    if let Some(what) = describe_command(bytes) {
        report.add(format_args!("{what}: {name}"));
    }
}

fn describe_command(bytes: &[u8]) -> Option<String> {
    let (header, rest) = abi::CmdHdr::read_from_prefix(bytes).ok()?;
    let number = header.command & command::NUMBER;
    let is_extended = header.command & command::EXTENDED != 0;
    let name = match number.checked_sub(EX_COMMANDS_FIRST) {
        Some(index) => EX_COMMANDS.get(index as usize),
        None => COMMANDS.get(number as usize),
    };
    let name = name.copied().unwrap_or("unknown");
    let prefix = if is_extended { "EX_" } else { "" };
    let mut text = format!("uverbs command {number} ({prefix}{name})");
    if number == command::CREATE_QP {
        // Skip the address of the answer, or the longer header of an extended command.
        let body = rest.get(if is_extended { size_of::<abi::ExCmdHdr>() } else { 8 }..)?;
        let (asked, _) = abi::CreateQp::read_from_prefix(body).ok()?;
        text += &format!(", QP type {} ({})", asked.qp_type, qp_type_name(asked.qp_type));
    }
    Some(text)
}

/// Reports a failed `ioctl` of the adapter. The header consists of length, object and method (Linux
/// `rdma_user_ioctl_cmds.h`).
pub(crate) fn ioctl(header: [u16; 3], error: Errno) {
    let [_, object, method] = header;
    let (Some(report), Some(error)) = (&*REPORT, error_name(error)) else { return };
    if is_optional(object, method) {
        return;
    }
    let names = if object < DRIVER { &OBJECTS[..] } else { &DRIVER_OBJECTS };
    let name = names.get(usize::from(object % DRIVER)).copied().unwrap_or("unknown");
    report.add(format_args!("uverbs ioctl: object {object} ({name}), method {method}: {error}"));
}

/// Whether the libraries can replace the method by a `write` or a file in `/sys`, or do not need
/// it.
fn is_optional(object: u16, method: u16) -> bool {
    const DEVICE: u16 = 0;
    const MR: u16 = 7;
    const QUERY_CONTEXT: u16 = 4;
    const CREATE_AND_DESTROY: [u16; 4] = [3, 4, 5, 12];
    const DESTROY_ONLY: [u16; 6] = [1, 6, 8, 9, 10, 11];
    // libmlx5 calls this at each open, to query more capabilities than commands return.
    const DEVX_OTHER: u16 = DRIVER;
    match object {
        DRIVER => method == DEVX_OTHER,
        DEVICE => method != QUERY_CONTEXT,
        MR => method == 1,
        object if CREATE_AND_DESTROY.contains(&object) => method <= 1,
        object if DESTROY_ONLY.contains(&object) => method == 0,
        _ => false,
    }
}

/// Reports a failed `mmap` of the adapter.
pub(crate) fn map(offset: u64, error: Errno) {
    const REGULAR: u64 = 0;
    // libmlx5 encodes the kind of page in the offset.
    let kind = (offset / PAGE_BYTES as u64) >> 8 & 0xff;
    let Some(report) = &*REPORT else { return };
    if error == Errno::INVAL && kind != REGULAR {
        let name = MAP_KINDS.get(kind as usize).copied().unwrap_or("unknown");
        report.add(format_args!("mmap of kind {kind} ({name})"));
    }
}

/// The name of an error that means that something is not supported; `None` for other errors.
fn error_name(error: Errno) -> Option<&'static str> {
    match error {
        Errno::OPNOTSUPP => Some("EOPNOTSUPP"),
        Errno::NOSYS => Some("ENOSYS"),
        Errno::NOTTY => Some("ENOTTY"),
        Errno::PROTONOSUPPORT => Some("EPROTONOSUPPORT"),
        _ => None,
    }
}

fn qp_type_name(qp_type: u8) -> &'static str {
    match qp_type {
        2 => "RC",
        3 => "UC",
        4 => "UD",
        8 => "RAW_PACKET",
        9 => "XRC_SEND",
        10 => "XRC_RECV",
        0xff => "DRIVER",
        _ => "unknown",
    }
}

/// Names of commands, by number (`enum ib_uverbs_write_cmds`).
const COMMANDS: [&str; 41] = [
    "GET_CONTEXT",
    "QUERY_DEVICE",
    "QUERY_PORT",
    "ALLOC_PD",
    "DEALLOC_PD",
    "CREATE_AH",
    "MODIFY_AH",
    "QUERY_AH",
    "DESTROY_AH",
    "REG_MR",
    "REG_SMR",
    "REREG_MR",
    "QUERY_MR",
    "DEREG_MR",
    "ALLOC_MW",
    "BIND_MW",
    "DEALLOC_MW",
    "CREATE_COMP_CHANNEL",
    "CREATE_CQ",
    "RESIZE_CQ",
    "DESTROY_CQ",
    "POLL_CQ",
    "PEEK_CQ",
    "REQ_NOTIFY_CQ",
    "CREATE_QP",
    "QUERY_QP",
    "MODIFY_QP",
    "DESTROY_QP",
    "POST_SEND",
    "POST_RECV",
    "ATTACH_MCAST",
    "DETACH_MCAST",
    "CREATE_SRQ",
    "MODIFY_SRQ",
    "QUERY_SRQ",
    "DESTROY_SRQ",
    "POST_SRQ_RECV",
    "OPEN_XRCD",
    "CLOSE_XRCD",
    "CREATE_XSRQ",
    "OPEN_QP",
];

/// Names of commands that have only an extended form, from number [`EX_COMMANDS_FIRST`] on.
const EX_COMMANDS: [&str; 8] = [
    "CREATE_FLOW",
    "DESTROY_FLOW",
    "CREATE_WQ",
    "MODIFY_WQ",
    "DESTROY_WQ",
    "CREATE_RWQ_IND_TBL",
    "DESTROY_RWQ_IND_TBL",
    "MODIFY_CQ",
];
const EX_COMMANDS_FIRST: u32 = 50;

/// Names of `ioctl` objects, by number (`enum uverbs_default_objects`).
const OBJECTS: [&str; 17] = [
    "DEVICE",
    "PD",
    "COMP_CHANNEL",
    "CQ",
    "QP",
    "SRQ",
    "AH",
    "MR",
    "MW",
    "FLOW",
    "XRCD",
    "RWQ_IND_TBL",
    "WQ",
    "FLOW_ACTION",
    "DM",
    "COUNTERS",
    "ASYNC_EVENT",
];

/// The first number of the driver's objects and methods.
const DRIVER: u16 = 1 << 12;
/// Names of the driver's objects, from number [`DRIVER`] on (`enum mlx5_ib_objects`).
const DRIVER_OBJECTS: [&str; 10] = [
    "DEVX",
    "DEVX_OBJ",
    "DEVX_UMEM",
    "FLOW_MATCHER",
    "DEVX_ASYNC_CMD_FD",
    "DEVX_ASYNC_EVENT_FD",
    "VAR",
    "PP",
    "UAR",
    "STEERING_ANCHOR",
];

/// Names of the kinds of pages, by number (`enum mlx5_ib_mmap_cmd`).
const MAP_KINDS: [&str; 9] = [
    "REGULAR_PAGE",
    "CONTIGUOUS_PAGES",
    "WC_PAGE",
    "NC_PAGE",
    "unknown",
    "CORE_CLOCK",
    "ALLOC_WC",
    "CLOCK_INFO",
    "DEVICE_MEM",
];

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn files_of_adapters_are_reported_by_their_names_in_sys() {
        let report = |path: &str| missing_file(Path::new(path), Path::new("/tmp/tree"));
        let named = |path: &str| report(path).map(|path| path.display().to_string());
        assert_eq!(named("/dev/infiniband/rdma_cm").unwrap(), "/dev/infiniband/rdma_cm");
        let gid_type = "class/infiniband/mlx5_0/ports/1/gid_attrs/types/0";
        for folder in ["/tmp/tree", "/sys"] {
            assert_eq!(named(&format!("{folder}/{gid_type}")).unwrap(), format!("/sys/{gid_type}"));
        }
        assert_eq!(named("/sys/class/misc/rdma_cm/abi_version").unwrap().len(), 35);
        for other in ["/etc/passwd", "/sys/class/net/ib0/mtu", "/tmp/tree2/class/infiniband/x"] {
            assert_eq!(report(other), None, "{other}");
        }
    }

    #[test]
    fn commands_are_described_by_number_name_and_transport() {
        let command = |command, answer: &[u8], body: &[u8]| {
            let header = abi::CmdHdr { command, in_words: 0, out_words: 0 };
            describe_command(&[header.as_bytes(), answer, body].concat()).unwrap()
        };
        assert_eq!(command(37, &[0; 8], &[]), "uverbs command 37 (OPEN_XRCD)");
        assert_eq!(
            command(50 | command::EXTENDED, &[0; 16], &[]),
            "uverbs command 50 (EX_CREATE_FLOW)"
        );
        assert_eq!(command(255, &[0; 8], &[]), "uverbs command 255 (unknown)");
        let asked = abi::CreateQp { qp_type: 8, ..Default::default() };
        let raw = "QP type 8 (RAW_PACKET)";
        for (number, answer) in [(24, &[0; 8][..]), (24 | command::EXTENDED, &[0; 16])] {
            let text = command(number, answer, asked.as_bytes());
            assert!(text.starts_with("uverbs command 24 (") && text.ends_with(raw), "{text}");
        }
        assert_eq!(describe_command(&[0; 3]), None);
    }

    #[test]
    fn an_ioctl_that_has_another_form_is_optional() {
        const DEVICE: u16 = 0;
        const MR: u16 = 7;
        const DM: u16 = 14;
        const DEVX_OBJ: u16 = DRIVER + 1;
        assert!(is_optional(DEVICE, 0) && is_optional(MR, 1) && is_optional(DRIVER, DRIVER));
        assert!(!is_optional(MR, 3) && !is_optional(DM, 0) && !is_optional(DEVX_OBJ, DRIVER));
    }
}
