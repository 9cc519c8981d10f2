//! Findings of the doctor that need the libraries: the devices that they list, and whether the CM
//! class of each port is free.

use crate::doctor::{DoctorFinding, DoctorVerdict, finding};
use crate::management::{ManagementPort, Registration};
use crate::umad::UmadPort;
use crate::{hca, umad};
use pollux_verbs::VerbsError;
use pollux_wire::mad::{Method, MgmtClass};

/// Ports of one device, at most.
const PORTS_MAX: u8 = 8;

pub fn examine() -> Vec<DoctorFinding> {
    let mut findings = vec![verbs()];
    match umad::device_names() {
        Err(reason) => {
            let remedy =
                "install libibumad (scripts/host-setup --hca): nodes on InfiniBand need it";
            findings.push(finding("libibumad", DoctorVerdict::Warning, reason, remedy));
        }
        Ok(names) => {
            findings.push(devices("libibumad", &names, crate::error::UMAD));
            findings.extend(names.iter().flat_map(|name| cm_class(name)));
        }
    }
    findings
}

fn verbs() -> DoctorFinding {
    match hca::names() {
        Ok(names) => devices("libibverbs", &names, hca::LOAD),
        Err(errno) => {
            let reason = std::io::Error::from_raw_os_error(errno).to_string();
            finding("libibverbs", DoctorVerdict::Warning, reason, crate::error::advice(errno))
        }
    }
}

fn devices(library: &str, names: &[String], remedy: &'static str) -> DoctorFinding {
    match names {
        [] => finding(library, DoctorVerdict::Warning, "sees no device", remedy),
        names => finding(library, DoctorVerdict::Good, format!("sees {}", names.join(", ")), ""),
    }
}

/// Whether a node could have connections at the ports of a device. Registers an agent for the CM
/// class at each port; the agent ends when the port is closed.
fn cm_class(device: &str) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    // On Ethernet, nodes register no agent for the CM class: their CM MADs are packets between the
    // UD queue pairs of interfaces.
    for number in (1..=PORTS_MAX).filter(|number| !is_ethernet(device, *number)) {
        let subject = format!("{device}:{number}");
        let mut port = match UmadPort::open(&subject) {
            Ok(port) => port,
            // Every device has a port 1. If a later port does not open, the device has no more
            // ports.
            Err(error) if number == 1 => {
                let (found, remedy) = (error.to_string(), crate::error::UMAD);
                findings.push(finding(subject, DoctorVerdict::Bad, found, remedy));
                break;
            }
            Err(_) => break,
        };
        let registration = Registration::new(MgmtClass::COMM_MGT, &[Method::SEND]);
        findings.push(match port.register(&registration) {
            Ok(_) => finding(subject, DoctorVerdict::Good, "the CM class is free", ""),
            Err(VerbsError::System { advice, .. }) => finding(
                subject,
                DoctorVerdict::Warning,
                "nodes cannot make connections at this port",
                advice,
            ),
            Err(error) => {
                finding(subject, DoctorVerdict::Bad, error.to_string(), crate::error::UMAD)
            }
        });
    }
    findings
}

fn is_ethernet(device: &str, port: u8) -> bool {
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/link_layer");
    std::fs::read_to_string(path).is_ok_and(|layer| layer.trim() == "Ethernet")
}
