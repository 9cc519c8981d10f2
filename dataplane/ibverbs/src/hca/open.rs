//! Finds a device by name and opens it.

use super::limits::{self, Failed, Probe};
use super::owned::Owned;
use super::{Fast, Hca};
use crate::error::{HcaOpenError, advice, last_errno};
use ibverbs_sys as ffi;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::ffi::{CStr, c_int};
use std::os::fd::BorrowedFd;
use std::ptr;

/// The library's list of devices, which is freed when dropped.
struct List {
    first: *mut *mut ffi::ibv_device,
    count: usize,
}

impl List {
    fn read() -> Result<Self, i32> {
        let mut count: c_int = 0;
        // SAFETY: the library writes `count`, and returns a list that it owns, or null.
        let first = unsafe { ffi::ibv_get_device_list(&raw mut count) };
        if first.is_null() {
            return Err(last_errno());
        }
        Ok(Self { first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = (*mut ffi::ibv_device, String)> {
        (0..self.count).map(|nth| {
            // SAFETY: the list has `count` devices, and lives as long as this value.
            let device = unsafe { *self.first.add(nth) };
            // SAFETY: the name of a device is a C string that lives as long as the list.
            let name = unsafe { CStr::from_ptr(ffi::ibv_get_device_name(device)) };
            (device, name.to_string_lossy().into_owned())
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the library returned this list, and it is freed only here. Open contexts stay
        // valid without the list.
        unsafe { ffi::ibv_free_device_list(self.first) };
    }
}

/// The advice if there is no device.
pub(crate) const LOAD: &str = "is there one in the machine, and is its driver loaded \
                               (mlx5_ib ...)? `rdma link` lists what the kernel has";

/// The names of the devices that the library lists, or its errno.
pub(crate) fn names() -> Result<Vec<String>, i32> {
    List::read().map(|list| list.devices().map(|(_, name)| name).collect())
}

/// Opens the device of this name; fails if it has fewer than `port` ports.
pub fn open(name: &str, port: u8) -> Result<Hca, HcaOpenError> {
    let device = || name.to_owned();
    let failed = |verb| {
        move |errno| HcaOpenError::System { device: device(), verb, errno, advice: advice(errno) }
    };
    let list = List::read().map_err(|errno| match Errno::from_raw_os_error(errno) {
        Errno::NOSYS => HcaOpenError::NoAdapters { device: device(), advice: advice(errno) },
        _ => failed("ibv_get_device_list")(errno),
    })?;
    let found = list.devices().find(|(_, found)| found == name);
    let Some((found, _)) = found else {
        let present: Vec<String> = list.devices().map(|(_, name)| name).collect();
        return Err(match present.is_empty() {
            true => HcaOpenError::NoAdapters { device: device(), advice: LOAD },
            false => HcaOpenError::NoSuchDevice { device: device(), present },
        });
    };
    // SAFETY: the device is in the list, which is still live. Only this value closes the context.
    let context = unsafe { Owned::new(ffi::ibv_open_device(found), ffi::ibv_close_device) };
    let hca = assemble(name, port, context.map_err(failed("ibv_open_device"))?)
        .map_err(|(verb, errno)| failed(verb)(errno))?;
    let ports = hca.attributes.ports;
    if port > ports {
        return Err(HcaOpenError::NoSuchPort { device: device(), port, ports });
    }
    Ok(hca)
}

fn assemble(name: &str, port: u8, context: Owned<ffi::ibv_context>) -> Result<Hca, Failed> {
    let fast = Fast::of(&context).ok_or(("ibv_context", Errno::OPNOTSUPP.raw_os_error()))?;
    // SAFETY: the context is live, and the channel is destroyed before it (order of the fields of
    // `Hca`; until then, order of the locals).
    let channel = unsafe {
        let made = ffi::ibv_create_comp_channel(context.raw());
        Owned::new(made, ffi::ibv_destroy_comp_channel)
    };
    let channel = channel.map_err(|errno| ("ibv_create_comp_channel", errno))?;
    // SAFETY: channel and context are live, and their descriptors do not change.
    let files = unsafe { [(*channel.raw()).fd, (*context.raw()).async_fd] };
    for file in files {
        // SAFETY: the descriptor is open as long as its channel or context, which outlive this
        // loop.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        // Non-blocking: a read without an event must return at once.
        fcntl_getfl(file)
            .and_then(|flags| fcntl_setfl(file, flags | OFlags::NONBLOCK))
            .map_err(|error| ("fcntl", error.raw_os_error()))?;
    }
    let probe = Probe::of(&context)?;
    let attributes = limits::attributes(name, &context, port, &probe)?;
    Ok(Hca::new(context, channel, fast, attributes))
}

impl Fast {
    /// The function pointers of this context; `None` if the driver lacks one of them.
    fn of(context: &Owned<ffi::ibv_context>) -> Option<Self> {
        // SAFETY: the context is live, and its function table is filled when the device is opened.
        let ops = unsafe { &*ptr::addr_of!((*context.raw()).ops) };
        Some(Self {
            post_send: ops.post_send?,
            post_recv: ops.post_recv?,
            post_srq_recv: ops.post_srq_recv?,
            poll_cq: ops.poll_cq?,
            req_notify_cq: ops.req_notify_cq?,
        })
    }
}
