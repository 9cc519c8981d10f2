//! Copies smoltcp's example programs from its package, and replaces the function that opens the
//! device.
#![expect(clippy::disallowed_methods, reason = "cargo says where the package is")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const PROGRAMS: [&str; 5] = ["server", "client", "ping", "httpclient", "multicast"];

/// Replaces the function that opens a TUN device. `--tun` names a device of Pollux; `--tap` has the
/// last number of the addresses and the mode, such as `1,rc`.
const OPEN: &str = r#"
pub fn parse_tuntap_options(matches: &mut Matches) -> pollux::smoltcp::Device {
    let device = matches.opt_str("tun").expect("--tun names the device");
    let options = matches.opt_str("tap").expect("--tap is the host and the mode");
    let (host, mode) = options.split_once(',').expect("a host and a mode");
    let mode = if mode == "rc" { pollux::Mode::Rc } else { pollux::Mode::Ud };
    let interface = pollux::Node::open(&device).unwrap().interface("ib0").mode(mode);
    let interface = interface.address(&format!("192.168.69.{host}/24"));
    interface.address(&format!("fdaa::{host}/64")).up_smoltcp().unwrap()
}
"#;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    let (examples, out) = (examples()?, PathBuf::from(env::var("OUT_DIR")?));
    for program in PROGRAMS {
        let mut text = fs::read_to_string(examples.join(program).with_extension("rs"))?;
        // All examples have the same address. The client needs another one, because it runs beside
        // the server here.
        if program == "client" {
            text = text.replace("v4(192, 168, 69, 1)", "v4(192, 168, 69, 2)");
            text =
                text.replace("v6(0xfdaa, 0, 0, 0, 0, 0, 0, 1)", "v6(0xfdaa, 0, 0, 0, 0, 0, 0, 2)");
        }
        fs::write(out.join(program).with_extension("rs"), text)?;
    }
    let utils = fs::read_to_string(examples.join("utils.rs"))?;
    // smoltcp's own function is not compiled: this package lacks the feature that its `cfg` names.
    fs::write(out.join("utils.rs"), utils + OPEN)?;
    Ok(())
}

/// The examples of the release of smoltcp that this workspace uses.
fn examples() -> Result<PathBuf, Box<dyn Error>> {
    let arguments = ["metadata", "--format-version", "1", "--offline", "--locked"];
    let output = Command::new(env::var("CARGO")?).args(arguments).output()?;
    let metadata = String::from_utf8(output.stdout)?;
    let manifests = metadata.split("\"manifest_path\":\"").skip(1);
    let mut manifests = manifests.filter_map(|rest| rest.split('"').next());
    let manifest = manifests.find(|path| path.contains("/smoltcp-0."));
    Ok(Path::new(manifest.ok_or("no package smoltcp")?).with_file_name("examples"))
}
