//! Generates bindings to the installed `infiniband/mlx5dv.h`, and links libmlx5.
//!
//! Why the installed header is used: the structures of the library grow from release to release,
//! and its own header has the sizes with which it was built. `bindings.rs` asserts the definitions
//! on which this crate relies.
#![cfg_attr(
    feature = "hca",
    expect(clippy::disallowed_methods, reason = "cargo tells the folder by a variable")
)]

#[cfg(feature = "hca")]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-lib=mlx5");
    let bindings = bindgen::Builder::default()
        .header_contents("mlx5.h", "#include <infiniband/mlx5dv.h>\n")
        .allowlist_function("mlx5dv_(init_obj|create_qp|is_supported)")
        .allowlist_type("mlx5dv_(obj|qp|cq|srq|ah|qp_init_attr|qp_create_flags)")
        .allowlist_type("mlx5dv_(obj_type|qp_init_attr_mask)")
        .allowlist_type("mlx5_wqe_(ctrl|datagram|raddr|atomic|data|inl_data|srq_next)_seg")
        .allowlist_type("mlx5_wqe_(umr_ctrl|umr_klm|mkey_context)_seg|mlx5_wqe_av")
        .allowlist_type("mlx5_cqe64|mlx5_err_cqe")
        .allowlist_var("MLX5_.*")
        // Types of libibverbs come from the crate that binds its functions.
        .blocklist_type("ibv_(ah|context|cq|device|dm|pd|qp|qp_init_attr_ex|srq|wq)")
        .raw_line("use ibverbs_sys::*;")
        // Both packed and aligned, which Rust does not support.
        .opaque_type("mlx5_wqe_ctrl_seg")
        .prepend_enum_name(false)
        .derive_default(true)
        .layout_tests(false)
        .generate()
        .expect("mlx5dv.h is there and parses; scripts/host-setup --hca installs it");
    let folder = std::env::var_os("OUT_DIR").expect("cargo sets it");
    let file = std::path::Path::new(&folder).join("mlx5dv.rs");
    bindings.write_to_file(file).expect("the folder of the build is ours");
}

#[cfg(not(feature = "hca"))]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
}
