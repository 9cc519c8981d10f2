//! smoltcp's own example programs over `pollux::smoltcp::Device`. Each program in `src/bin` is that
//! of smoltcp's package, except for the function that opens the device (`build.rs`).
#![forbid(unsafe_code)]
