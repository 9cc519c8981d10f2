//! Paths below `/sys/class/infiniband*` and `/sys/class/misc/rdma_cm`, which the program finds in a
//! tree of its own.
//!
//! Why not by `SYSFS_PATH` alone: libibverbs reads that variable, libibumad and tools do not.

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStringExt;
use std::sync::LazyLock;

/// The root of the tree, as `/sys` is that of the kernel's.
#[expect(clippy::disallowed_methods, reason = "the library begins here: its variable")]
static ROOT: LazyLock<Option<Vec<u8>>> =
    LazyLock::new(|| std::env::var_os("SYSFS_PATH").map(OsStringExt::into_vec));

/// A path of the program, or the one that it is looked up by.
pub(crate) enum Path {
    Own(*const c_char),
    Tree(CString),
}

impl Path {
    /// # Safety
    /// `path` is null or a string.
    pub(crate) unsafe fn of(path: *const c_char) -> Self {
        if path.is_null() {
            return Self::Own(path);
        }
        // SAFETY: as our caller says.
        let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
        below_root(bytes).map_or(Self::Own(path), Self::Tree)
    }

    pub(crate) fn as_ptr(&self) -> *const c_char {
        match self {
            Self::Own(path) => *path,
            Self::Tree(path) => path.as_ptr(),
        }
    }
}

fn below_root(path: &[u8]) -> Option<CString> {
    let path = path.strip_prefix(b"/sys")?;
    let classes: [&[u8]; 2] = [b"/class/infiniband", b"/class/misc/rdma_cm"];
    let is_devices = classes.iter().any(|class| path.starts_with(class));
    let root = ROOT.as_ref().filter(|_| is_devices)?;
    CString::new([root, path].concat()).ok()
}
