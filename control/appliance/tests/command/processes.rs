//! Processes at a running fabric: they find each other by subnet administration, and get over it
//! when one of them is killed, or the fabric.

use crate::program::{Program, exchange};
use crate::running::{Ending, Running, TIMEOUT, preload};
use pollux_verbs::{AsyncEvent, CompletionKind, CompletionStatus};
use pollux_wire::address::{Gid, Lid};
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::sa::{
    JoinState, McMemberRecord, McMemberRecordMask, PathRecord, PathRecordMask,
};
use pollux_wire::mad::{AttributeId, MAD_LEN, MadHeader, MadStatus, Method, MgmtClass};
use pollux_wire::units::TimeCode;
use std::os::unix::process::{ExitStatusExt, parent_id};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const NAME: &str = "POLLUX_TEST_PORT";
const PEER: &str = "POLLUX_TEST_PEER";

/// The broadcast group of IPv4 in the default partition (RFC 4391 4).
pub const BROADCAST: Gid =
    Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);

/// Joins the broadcast group as Linux does.
fn join_broadcast(program: &mut Program) -> McMemberRecord {
    let wanted = McMemberRecord {
        mgid: BROADCAST,
        port_gid: program.gid(),
        p_key: PKey::DEFAULT,
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    };
    join(program, McMemberRecordMask::LINUX_JOIN_BROADCAST, wanted)
}

/// Joins another group, which is like the broadcast group; its address in the subnet.
pub fn join_group(program: &mut Program, mgid: Gid) -> Lid {
    let like = join_broadcast(program);
    join(program, McMemberRecordMask::LINUX_JOIN, McMemberRecord { mgid, ..like }).mlid
}

fn join(program: &mut Program, mask: McMemberRecordMask, wanted: McMemberRecord) -> McMemberRecord {
    let (answer, joined) = program.ask(Method::SET, mask, wanted);
    assert_eq!(answer.header.status, MadStatus::OK);
    assert!(joined.mlid.is_multicast() && joined.mgid == wanted.mgid);
    joined
}

/// How to reach a GID.
fn path(program: &mut Program, dgid: Gid) -> (MadStatus, Lid) {
    let wanted = PathRecord {
        sgid: program.gid(),
        dgid,
        numb_path: 1,
        p_key: PKey::DEFAULT,
        ..PathRecord::default()
    };
    let (answer, path) = program.ask(Method::GET, PathRecordMask::LINUX_QUERY, wanted);
    (answer.header.status, path.dlid)
}

/// A datagram of a class, as queue pairs 1 exchange them.
fn mad(class: MgmtClass, method: Method) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    let header = MadHeader::new(class, method, 9, AttributeId(1));
    mad[..MadHeader::LEN].copy_from_slice(&header.emit());
    mad
}

/// What programs do by their own queue pairs 1, whoever manages the subnet.
fn find_each_other(programs: &mut [Program; 2]) {
    let (gids, lids) = ([programs[0].gid(), programs[1].gid()], programs[1].lid());
    for program in &mut *programs {
        assert_eq!(join_broadcast(program).q_key, QKey::IPOIB_OPENSM);
    }
    assert_eq!(path(&mut programs[0], gids[1]), (MadStatus::OK, lids));
    for _ in 0..2 {
        let [from, to] = &mut *programs;
        let request = mad(MgmtClass::COMM_MGT, Method::SEND);
        from.send_mad(to.lid(), &request);
        assert_eq!(to.mad(), (from.lid(), request), "as it was sent");
        from.send_mad(to.lid(), &mad(MgmtClass::PERF, Method::GET));
        let (answers, answer) = from.mad();
        assert_eq!((answers, Method(answer[3])), (to.lid(), Method::GET_RESP), "of its agent");
        programs.swap(0, 1);
    }
}

// req: iba-subnet-management
#[test]
fn processes_find_each_other_by_queue_pair_1() {
    let fabric = Running::new("find", &["--topology", "single:2"]);
    let mut programs = [1, 2].map(|host| Program::at(&fabric.port(host)));
    find_each_other(&mut programs);
    let (_, groups) = fabric.ask(&["show", "groups", "--json"]);
    assert!(groups.contains("switch1:1") && groups.contains("switch1:2"), "{groups}");
    let (_, ports) = fabric.ask(&["show", "ports", "--json"]);
    let own = format!(r#""process":{},"#, std::process::id());
    assert_eq!(ports.matches(&own).count(), 2, "{ports}");
    // Traffic that needs no administration passes by direct rings.
    let [one, other] = &mut programs;
    one.connect(other.lid());
    other.connect(one.lid());
    exchange(one, other, 100);
    fabric.end("-TERM");
}

/// OpenSM replaces the embedded manager, and every packet is looked at. Whatever it writes, the
/// processes at the ports learn.
// req: iba-subnet-management
#[test]
fn processes_find_each_other_under_opensm() {
    let Some(preload) = preload("processes_find_each_other_under_opensm") else { return };
    let name = format!("pollux-{}-find", std::process::id());
    let arguments = ["--topology", "single:3", "--umad", &name, "--capture", "all.pcap"];
    let fabric = Running::unmanaged("find-opensm", &arguments);
    let mut programs = [1, 2].map(|host| Program::new(&fabric.port(host)));
    let partitions = "Default=0x7fff, ipoib: ALL=full;\nblue=0x12: ALL=full;\n";
    std::fs::write(fabric.folder.join("partitions.conf"), partitions).expect("a file");
    let _opensm = fabric.opensm(&preload, &name, "host3", &["-P", "partitions.conf"]);
    for program in &mut programs {
        program.begin();
        let pkeys = (0..2).map(|index| program.device.pkey(1, index));
        assert!(pkeys.flatten().any(|pkey| pkey == PKey(0x8012)));
        for event in [
            AsyncEvent::PortActive(1),
            AsyncEvent::LidChange(1),
            AsyncEvent::PkeyChange(1),
            AsyncEvent::SmChange(1),
            AsyncEvent::ClientReregister(1),
        ] {
            assert!(program.events.contains(&event), "no {event:?} in {:?}", program.events);
        }
    }
    find_each_other(&mut programs);
}

/// The datagrams of a program go over a wire to another fabric, and its manager answers.
#[test]
fn processes_at_two_fabrics_find_each_other() {
    let wire = crate::running::folder("find-near").join("wire");
    let plug = format!("switch1:9=stream:{}", wire.display());
    let near = Running::new("find-near", &["--topology", "single:2", "--wire", &plug]);
    let grant = ["--managers", "switch1:9"];
    let far = [&["--topology", "single:2", "--wire", &plug, "--seed", "2"], &grant[..]].concat();
    let far = Running::unmanaged("find-far", &far);
    let mut programs = [&near, &far].map(|fabric| Program::at(&fabric.port(1)));
    find_each_other(&mut programs);
}

/// A client that is killed takes its port down: its peer gets an error of its connection, the
/// manager a trap, and other clients nothing.
#[test]
fn a_client_is_killed_in_the_middle_of_it() {
    let fabric = Running::new("killed", &["--topology", "single:4"]);
    let mut victims_peer = Program::at(&fabric.port(1));
    let first = Program::at(&fabric.port(2));
    let (victims_lid, victims_gid) = (first.lid(), first.gid());
    drop(first);
    let mut others = [3, 4].map(|host| Program::at(&fabric.port(host)));
    let [one, other] = &mut others;
    one.connect(other.lid());
    other.connect(one.lid());
    for _ in 0..2 {
        // A sixteenth of a second, seven times, until it gives up a peer that has died.
        victims_peer.connect_with(victims_lid, TimeCode(14));
        let mut victim = sender(&fabric.port(2), victims_peer.lid());
        for _ in 0..20 {
            victims_peer.receive();
        }
        for _ in 0..20 {
            let received = (CompletionKind::Recv, CompletionStatus::Success);
            assert_eq!(victims_peer.completed(), received);
            exchange(one, other, 1);
        }
        let (_, ports) = fabric.ask(&["show", "ports", "--json"]);
        assert!(ports.contains(&format!(r#""process":{}"#, victim.0.id())), "{ports}");
        victim.0.kill().unwrap();
        assert_eq!(victim.0.wait().unwrap().signal(), Some(9), "it ended by itself");
        victims_peer.send();
        let lost = (CompletionKind::Send, CompletionStatus::RetryExceeded);
        assert_eq!(victims_peer.completed(), lost);
        exchange(one, other, 100);
        let begun = Instant::now();
        while path(&mut victims_peer, victims_gid).0 == MadStatus::OK {
            assert!(begun.elapsed() < TIMEOUT, "the manager does not hear of it");
            std::thread::sleep(Duration::from_millis(20));
        }
        // Its port is free again, and the manager brings the next one up: without an event if that
        // is done before the device is open.
        let mut next = Program::at(&fabric.port(2));
        victims_peer.connect(next.lid());
        next.connect(victims_peer.lid());
        exchange(&mut next, &mut victims_peer, 10);
    }
    assert!(others.iter().all(|other| !other.events.contains(&AsyncEvent::PortError(1))));
}

/// When the fabric is killed its clients learn that their ports are down, and are at their ports
/// again when there is another one.
#[test]
fn the_fabric_is_killed() {
    let mut fabric = Running::new("restarted", &["--topology", "single:2"]);
    let mut programs = [1, 2].map(|host| Program::at(&fabric.port(host)));
    for _ in 0..2 {
        let [one, other] = &mut programs;
        one.connect(other.lid());
        other.connect(one.lid());
        exchange(one, other, 50);
        fabric.replace();
        for program in &mut programs {
            program.events.clear();
            program.until(|program| {
                let has = |event| program.events.contains(&event);
                has(AsyncEvent::PortError(1)) && has(AsyncEvent::PortActive(1))
            });
        }
        find_each_other(&mut programs);
    }
}

/// A process that sends to a peer until it is killed.
pub fn sender(port: &str, peer: Lid) -> Ending {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::peer", "--nocapture"])
        .env(NAME, port)
        .env(PEER, peer.0.to_string())
        .stdout(Stdio::null())
        .spawn();
    Ending(child.expect("it starts"))
}

/// Does nothing as a test. As a process of its own it sends until it is killed, or until no peer is
/// there any more.
#[test]
fn peer() {
    let (Ok(name), Ok(peer)) = (std::env::var(NAME), std::env::var(PEER)) else { return };
    let mut program = Program::at(&name);
    // A second, seven times: a subnet manager may have to find another path meanwhile.
    program.connect_with(Lid(peer.parse().unwrap()), TimeCode(18));
    let parent = parent_id();
    loop {
        program.send();
        while program.done.pop_front().is_none() {
            assert_eq!(parent_id(), parent, "nobody is there any more");
            program.step();
        }
    }
}
