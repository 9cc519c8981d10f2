//! Time from cabled nodes to a subnet with all ports active: our subnet manager against OpenSM over
//! ibsim.
//!
//! ```text
//! cargo bench -p pollux-perf --bench bring_up
//! ```
//!
//! Ranges of two runs, on two cores of a busy virtual machine (2.3 GHz). The first two rows are
//! medians of five measurements each, which alternate. The time of OpenSM is that of its whole
//! process.
//!
//! | what | figure |
//! |---|---|
//! | 1,008 hosts, ours, in memory | 0.092 to 0.094 s |
//! | 1,008 hosts, `opensm -o` over ibsim | 1.00 to 1.34 s |
//! | 10,000 hosts, ours | 0.83 to 4.2 s, 63 MB resident |
//! | path record queries as Linux sends them, 10,000 hosts | 25,000 to 76,000 a second |
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use pollux_fabric::Time;
use pollux_fabric::subnet::Datagram;
use pollux_fabric::topology::End;
use pollux_perf::bring_up::{Managed, THOUSAND, bring_up, host};
use pollux_perf::peers::opensm;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::PKey;
use pollux_wire::mad::sa::{PathRecord, PathRecordMask, SaMad};
use pollux_wire::mad::{MadStatus, Method};
use std::fs;
use std::time::{Duration, Instant};

const TEN_THOUSAND: &str = "leaf-spine:100x20x100";
const RUNS: usize = 5;
const QUESTIONS: u32 = 200_000;

fn main() {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        ours.push(bring_up(THOUSAND).1);
        theirs.extend(opensm::bring_up(THOUSAND));
    }
    println!("{THOUSAND}: ours {:.3?}", middle(ours));
    match theirs.is_empty() {
        true => println!("SKIP: opensm or ibsim is not installed"),
        false => println!("{THOUSAND}: opensm over ibsim {:.3?}", middle(theirs)),
    }
    let (mut managed, took) = bring_up(TEN_THOUSAND);
    println!("{TEN_THOUSAND}: ours {took:.3?}, {} MB resident", resident_megabytes());
    let took = ask(&mut managed, QUESTIONS);
    println!("path records: {:.0} a second", f64::from(QUESTIONS) / took.as_secs_f64());
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Queries path records from one host to every host in turn, with the fields that Linux sends.
fn ask(managed: &mut Managed, questions: u32) -> Duration {
    let gid = |end: End| managed.subnet.nodes()[end.node as usize].gid(end.port);
    let lid = |end: End| managed.subnet.nodes()[end.node as usize].lid(end.port);
    let (manager, from) = (host(&managed.subnet, 0), host(&managed.subnet, 1));
    let hosts = (0..).zip(managed.subnet.nodes()).filter(|(_, node)| !node.is_switch());
    let gids: Vec<Gid> = hosts.map(|(node, _)| gid(End { node, port: 1 })).collect();
    let (sgid, slid, dlid) = (gid(from), lid(from), lid(manager));
    let (mut answers, began) = (0, Instant::now());
    for (number, dgid) in (0..questions).zip(gids.iter().cycle()) {
        let wanted = PathRecord {
            sgid,
            dgid: *dgid,
            numb_path: 1,
            p_key: PKey::DEFAULT,
            ..PathRecord::default()
        };
        let mask = PathRecordMask::LINUX_QUERY;
        let mad = SaMad::new(Method::GET, number.into(), mask, wanted).emit();
        let (src_qp, dest_qp, p_key) = (Qpn::GSI, Qpn::GSI, PKey::DEFAULT);
        let datagram = Datagram { slid, dlid, src_qp, dest_qp, p_key, mad };
        managed.subnet.send(Time::START, from, datagram);
        managed.managers.exchange(Time::START, &mut managed.subnet, |_, datagram| {
            let answer = SaMad::parse(&datagram.mad);
            assert_eq!(answer.header.status, MadStatus::OK);
            answers += u32::from(
                PathRecord::read(&answer.data).is_ok_and(|(path, _)| path.dlid != Lid::NONE),
            );
        });
    }
    let took = began.elapsed();
    assert_eq!(answers, questions, "every question has its answer");
    took
}

fn resident_megabytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096 / 1_000_000
}
