//! Objects of the library, each ended once.

use std::ffi::c_int;
use std::ptr::NonNull;

/// How the library ends an object: 0, or a number of the system's.
pub(super) type End<T> = unsafe extern "C" fn(*mut T) -> c_int;

/// An object of the library, ended when dropped.
///
/// What an object was made from must live longer than the object; [`Hca`](super::Hca) declares its
/// tables in an order that sees to that.
pub(super) struct Owned<T> {
    raw: NonNull<T>,
    /// None once it has ended.
    end: Option<End<T>>,
}

// SAFETY: the library's objects belong to no thread; those of one device are moved together with
// it, and a device is used by one thread at a time.
unsafe impl<T> Send for Owned<T> {}

impl<T> Owned<T> {
    /// Takes over what a verb has made; the system's number if it has made nothing.
    ///
    /// # Safety
    /// `raw` is null, or a live object that nobody else ends and that `end` is the end of.
    pub(super) unsafe fn new(raw: *mut T, end: End<T>) -> Result<Self, i32> {
        NonNull::new(raw).map(|raw| Self { raw, end: Some(end) }).ok_or_else(last_errno)
    }

    /// The object, for the library. Live as long as this value, unless it was ended before.
    #[inline]
    pub(super) fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// Ends it now; if the system refuses, it lives on, and can be ended again.
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
        // An answer is of no use here: an object that a device takes along when it is unplugged may
        // refuse.
        let _ = self.end();
    }
}

/// The number that the last call of this thread has left.
pub(super) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Verbs answer with the number itself, some providers with -1 and the number beside.
pub(super) fn errno_of(answer: c_int) -> i32 {
    if answer > 0 { answer } else { last_errno() }
}

/// A verb's answer as a result.
pub(super) fn checked(answer: c_int) -> Result<(), i32> {
    if answer == 0 { Ok(()) } else { Err(errno_of(answer)) }
}
