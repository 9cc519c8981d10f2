//! Objects of the library, each destroyed once.

use crate::error::last_errno;
use std::ffi::c_int;
use std::ptr::NonNull;

/// The library's destructor: returns 0 or an errno.
pub(super) type End<T> = unsafe extern "C" fn(*mut T) -> c_int;

/// An object of the library, destroyed when dropped.
///
/// Its parent must outlive it: [`Hca`](super::Hca) declares its tables in an order that ensures
/// that.
pub(super) struct Owned<T> {
    raw: NonNull<T>,
    /// None once it is destroyed.
    end: Option<End<T>>,
}

// SAFETY: the library's objects belong to no thread; those of one device are moved together with
// it, and a device is used by one thread at a time.
unsafe impl<T> Send for Owned<T> {}

impl<T> Owned<T> {
    /// Owns a new object; the errno if `raw` is null.
    ///
    /// # Safety
    /// `raw` is null, or a live object that nothing else destroys and whose destructor is `end`.
    pub(super) unsafe fn new(raw: *mut T, end: End<T>) -> Result<Self, i32> {
        NonNull::new(raw).map(|raw| Self { raw, end: Some(end) }).ok_or_else(last_errno)
    }

    /// The object, for the library. Live as long as this value, unless it was destroyed before.
    #[inline]
    pub(super) fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// Destroys it now. If the system refuses, it stays live and can be destroyed again.
    pub(super) fn end(&mut self) -> Result<(), i32> {
        let Some(end) = self.end else { return Ok(()) };
        // SAFETY: the object is live, and this value alone ends it.
        checked(unsafe { end(self.raw()) })?;
        self.end = None;
        Ok(())
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // The result is of no use here: objects of an unplugged device may refuse.
        let _ = self.end();
    }
}

/// Verbs return the errno; some providers return -1 and set it.
pub(super) fn errno_of(answer: c_int) -> i32 {
    if answer > 0 { answer } else { last_errno() }
}

pub(super) fn checked(answer: c_int) -> Result<(), i32> {
    if answer == 0 { Ok(()) } else { Err(errno_of(answer)) }
}
