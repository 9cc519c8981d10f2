//! Redirects the program's paths below `/sys/class/infiniband*` and `/sys/class/misc/rdma_cm` to
//! another tree.
//!
//! Why the variable `SYSFS_PATH` is not enough: libibverbs reads it, but libibumad and tools do
//! not.

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStringExt;
use std::sync::LazyLock;

/// The folder that replaces `/sys`.
#[expect(clippy::disallowed_methods, reason = "the library begins here: its variable")]
static ROOT: LazyLock<Option<Vec<u8>>> =
    LazyLock::new(|| std::env::var_os("SYSFS_PATH").map(OsStringExt::into_vec));

/// The path to use for a path of the program: the same, or its path in the tree.
pub(crate) enum Path {
    Own(*const c_char),
    Tree(CString),
}

impl Path {
    /// # Safety
    /// `path` is null or a null-terminated string, which lives as long as the result.
    pub(crate) unsafe fn of(path: *const c_char) -> Self {
        if path.is_null() {
            return Self::Own(path);
        }
        // SAFETY: the path is not null, so by our contract it is a null-terminated string.
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
