//! Copies from and to addresses that a program passes in a call. As with the kernel, an address
//! that is not mapped causes the error EFAULT and not a fault. If a container forbids the system
//! calls for this (`process_vm_readv`, `process_vm_writev`), the copies are plain, and such an
//! address faults.

use rustix::io::Errno;
use std::io;

/// Copies bytes from an address of the program.
pub(crate) fn copy_in(address: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
    let mut copy = vec![0; bytes];
    let own = libc::iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: bytes };
    let program = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes };
    // SAFETY: the kernel checks both ranges; it writes only to `copy`.
    let copied = unsafe { libc::process_vm_readv(own_pid(), &own, 1, &program, 1, 0) };
    match all_of(copied, bytes) {
        // SAFETY: the program passed the address of a buffer of this length, as the call requires.
        // If it is not mapped, the access faults, which is the program's error.
        Err(Errno::NOSYS | Errno::PERM) => unsafe {
            copy.copy_from_slice(std::slice::from_raw_parts(address as *const u8, bytes));
        },
        copied => copied?,
    }
    Ok(copy)
}

/// Copies bytes to an address of the program.
pub(crate) fn copy_out(address: u64, bytes: &[u8]) -> Result<(), Errno> {
    let own = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let program = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the kernel checks both ranges. It only reads from `bytes`, and writes to the buffer
    // that the program passed for the answer.
    let copied = unsafe { libc::process_vm_writev(own_pid(), &own, 1, &program, 1, 0) };
    match all_of(copied, bytes.len()) {
        // SAFETY: as in `copy_in`.
        Err(Errno::NOSYS | Errno::PERM) => unsafe {
            std::ptr::copy(bytes.as_ptr(), address as *mut u8, bytes.len());
            Ok(())
        },
        copied => copied,
    }
}

fn own_pid() -> libc::pid_t {
    std::process::id().cast_signed()
}

fn all_of(copied: isize, bytes: usize) -> Result<(), Errno> {
    match usize::try_from(copied) {
        Ok(copied) if copied == bytes => Ok(()),
        Ok(_) => Err(Errno::FAULT),
        Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::FAULT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_or_the_address_is_an_error() {
        let mut memory = [0_u8; 8];
        let address = memory.as_mut_ptr() as u64;
        copy_out(address, b"12345678").unwrap();
        assert_eq!(copy_in(address, 4).unwrap(), b"1234");
        assert_eq!(memory, *b"12345678");
        let text = "read only";
        for (address, error) in [(0, Errno::FAULT), (8, Errno::FAULT), (1 << 63, Errno::FAULT)] {
            assert_eq!(copy_in(address, 4), Err(error), "{address:#x}");
            assert_eq!(copy_out(address, b"1234"), Err(error), "{address:#x}");
        }
        assert_eq!(copy_out(text.as_ptr() as u64, b"READ"), Err(Errno::FAULT));
        assert_eq!(text, "read only");
    }
}
