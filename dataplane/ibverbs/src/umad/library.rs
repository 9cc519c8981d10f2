//! libibumad, loaded at its first use.
//!
//! Why the library is not linked: on machines with Ethernet adapters only, libibverbs is often
//! installed without libibumad, and a program that is linked to both would not start.

use libloading::Library;
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

/// ABI version 3.
const LIBRARY_FILE: &str = "libibumad.so.3";

/// `UMAD_CA_NAME_LEN`: the maximum length of a device's name, including the terminating zero.
pub(super) const NAME_BYTES: usize = 20;

/// `struct umad_reg_attr`.
#[repr(C)]
pub(super) struct RawRegistration {
    pub mgmt_class: u8,
    pub mgmt_class_version: u8,
    pub flags: u32,
    pub method_mask: [u64; 2],
    pub oui: u32,
    pub rmpp_version: u8,
}

const _: () = assert!(size_of::<RawRegistration>() == 32);

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($argument:ty),*) -> $answer:ty;)*) => {
        pub(super) struct Umad {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> $answer,)*
        }

        impl Umad {
            /// # Safety
            /// `library` must be libibumad and must stay loaded.
            unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: by the caller's contract; the types are those of the library's header.
                Ok(unsafe { Self { $($field: *library.get(concat!($name, "\0").as_bytes())?,)* } })
            }
        }
    };
}

functions! {
    init = "umad_init": fn() -> c_int;
    size = "umad_size": fn() -> usize;
    cas_names = "umad_get_cas_names": fn(*mut [c_char; NAME_BYTES], c_int) -> c_int;
    issm_path = "umad_get_issm_path": fn(*const c_char, c_int, *mut c_char, c_int) -> c_int;
    open_port = "umad_open_port": fn(*const c_char, c_int) -> c_int;
    close_port = "umad_close_port": fn(c_int) -> c_int;
    file = "umad_get_fd": fn(c_int) -> c_int;
    register = "umad_register2": fn(c_int, *mut RawRegistration, *mut u32) -> c_int;
    unregister = "umad_unregister": fn(c_int, c_int) -> c_int;
    send = "umad_send": fn(c_int, c_int, *mut c_void, c_int, c_int, c_int) -> c_int;
    recv = "umad_recv": fn(c_int, *mut c_void, *mut c_int, c_int) -> c_int;
}

/// The library's functions, or why loading failed. The first result is kept for the process.
pub(super) fn umad() -> Result<&'static Umad, &'static str> {
    static UMAD: OnceLock<Result<Umad, String>> = OnceLock::new();
    let loaded = UMAD.get_or_init(|| load().map_err(|error| error.to_string()));
    loaded.as_ref().map_err(String::as_str)
}

fn load() -> Result<Umad, libloading::Error> {
    // SAFETY: loading runs the constructors of the file, so this trusts the file of this name that
    // the system's loader finds. That is no more trust than in libibverbs, which the loader finds
    // in the same way when the program starts: control of the search path (LD_LIBRARY_PATH,
    // LD_PRELOAD, the loader's configuration) is control of the process already. The library of
    // rdma-core has no constructors except those of every library.
    let library = unsafe { Library::new(LIBRARY_FILE) }?;
    // SAFETY: the file is libibumad by its name and version, and is never unloaded (`forget`
    // below).
    let umad = unsafe { Umad::of(&library) }?;
    std::mem::forget(library);
    Ok(umad)
}
