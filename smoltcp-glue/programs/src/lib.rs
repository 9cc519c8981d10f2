//! smoltcp's own example programs on `pollux::smoltcp::Device`: each in `src/bin` is as smoltcp's
//! package has it, but for the line that opens the device (`build.rs`).
#![forbid(unsafe_code)]
