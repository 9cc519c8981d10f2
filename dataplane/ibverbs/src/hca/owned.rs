//! Objects of the library, each destroyed exactly once.

use crate::error::last_errno;
use std::ffi::c_int;
use std::ptr::NonNull;

/// The library's function that destroys an object; returns 0 or an errno.
pub(super) type End<T> = unsafe extern "C" fn(*mut T) -> c_int;

/// An object of the library, destroyed when dropped.
///
/// Its parent must outlive it: [`Hca`](super::Hca) declares its tables in an order that ensures
/// that.
pub(super) struct Owned<T> {
    raw: NonNull<T>,
    /// `None` after the object is destroyed.
    end: Option<End<T>>,
}

// SAFETY: the library's objects are not bound to a thread. All objects of a device move together
// with it, and one thread at a time uses a device.
unsafe impl<T> Send for Owned<T> {}

impl<T> Owned<T> {
    /// Owns a new object; returns the errno of the last call if `raw` is null.
    ///
    /// # Safety
    /// `raw` must be null, or a live object that only this value destroys, and that `end` can
    /// destroy.
    pub(super) unsafe fn new(raw: *mut T, end: End<T>) -> Result<Self, i32> {
        NonNull::new(raw).map(|raw| Self { raw, end: Some(end) }).ok_or_else(last_errno)
    }

    /// The object, for the library. It is live as long as this value, or until a successful
    /// [`end`](Self::end).
    #[inline]
    pub(super) fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// Destroys the object. If the system refuses, the object stays live, and a later call can try
    /// again.
    pub(super) fn end(&mut self) -> Result<(), i32> {
        let Some(end) = self.end else { return Ok(()) };
        // SAFETY: the object is live, because `self.end` is still set; only this value destroys it.
        checked(unsafe { end(self.raw()) })?;
        self.end = None;
        Ok(())
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // A refusal is ignored: objects of an unplugged device may refuse.
        let _ = self.end();
    }
}

/// The errno of a failed verb: verbs return it, but some providers return -1 and set `errno`.
pub(super) fn errno_of(answer: c_int) -> i32 {
    if answer > 0 { answer } else { last_errno() }
}

pub(super) fn checked(answer: c_int) -> Result<(), i32> {
    if answer == 0 { Ok(()) } else { Err(errno_of(answer)) }
}
