//! An interface at a device that does not do all that it should.

use crate::device::{Illness, ailing};
use crate::fabric::{Manager, Running};
use crate::host::Hosts;
use pollux_control::ipoib::Action;
use pollux_control::mad::{Envelope, MadAddress};
use pollux_node::port::DevicePort;
use pollux_verbs::time::Time;
use pollux_verbs::{AsyncEvent, CompletionKind, CompletionStatus, VerbsError};
use pollux_wire::address::{Gid, Qpn};
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::ipv4::Ipv4Header;
use pollux_wire::keys::PKey;
use pollux_wire::mad::cm::{CmMessage, Dreq};
use pollux_wire::mad::sa::{McMemberRecord, SaMad};
use pollux_wire::mad::smp::PortState;
use pollux_wire::mad::{MAD_LEN, Method, MgmtClass};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than a device may take for anything.
const LATE: Duration = Duration::from_secs(6);

/// The losses of a device.
type Loss = fn(&Illness) -> AsyncEvent;

/// Two interfaces of a mode that are up, and the illness of the first one's device.
fn two(fabric: &Running, mode: &str) -> (Hosts, Arc<Mutex<Illness>>) {
    let (first, illness) = ailing(&fabric.port(1));
    let second = pollux_node::open(&fabric.port(2)).expect("the port is free");
    let keys = format!("mode = {mode:?}");
    let mut hosts = Hosts::opened(vec![(first, "10.0.0.1/24"), (second, "10.0.0.2/24")], &keys);
    hosts.come_up();
    (hosts, illness)
}

fn with<R>(illness: &Mutex<Illness>, change: impl FnOnce(&mut Illness) -> R) -> R {
    change(&mut illness.lock().expect("no test has panicked"))
}

/// The illness of the first worker's device.
fn of_worker(illness: &Mutex<Illness>) -> Arc<Mutex<Illness>> {
    with(illness, |it| Arc::clone(&it.beside[0]))
}

#[test]
fn an_adapter_without_queue_pair_1_is_managed_by_the_kernel_or_refused_with_advice() {
    let fabric = Running::start("an_adapter_without_queue_pair_1", 1, Manager::Ours);
    let (opened, illness) = ailing(&fabric.port(1));
    with(&illness, |it| it.lacks_gsi = true);
    let refusal = DevicePort::new(opened).err().expect("there is no interface").to_string();
    // The device's name is that of no adapter, nor of one that libibumad could find.
    assert!(refusal.starts_with("management: umad: "), "{refusal}");
    assert!(with(&illness, |it| it.qps.is_empty()), "nothing was made");
}

#[test]
fn an_interface_whose_device_loses_something_fails_and_says_what() {
    let fabric = Running::start("an_interface_whose_device_loses", 1, Manager::Ours);
    let losses: [(bool, Loss, &str); 5] = [
        (false, |_| AsyncEvent::DeviceFatal, "adapter"),
        (false, |it| AsyncEvent::CqError(it.cqs[0]), "completion queue"),
        (true, |_| AsyncEvent::DeviceFatal, "adapter"),
        (true, |it| AsyncEvent::CqError(it.cqs[0]), "completion queue"),
        (true, |it| AsyncEvent::SrqError(it.srqs[0]), "shared receive queue"),
    ];
    for (is_workers, loss, lost) in losses {
        let (opened, illness) = ailing(&fabric.port(1));
        let mut hosts = Hosts::opened(vec![(opened, "10.0.0.1/24")], "mode = 'rc'");
        hosts.come_up();
        let illness = if is_workers { of_worker(&illness) } else { illness };
        with(&illness, |it| it.events.push_back(loss(it)));
        let now = hosts.now();
        hosts.hosts[0].step(now);
        let failed = hosts.hosts[0].failed();
        assert!(
            matches!(failed, Some(VerbsError::Lost { what, .. }) if *what == lost),
            "{lost}: {failed:?}"
        );
    }
}

#[test]
fn a_connection_ends_in_time_though_the_device_does_not_tell() {
    let fabric = Running::start("a_connection_ends_in_time", 2, Manager::Ours);
    let (mut hosts, illness) = two(&fabric, "rc");
    hosts.must_answer(0, "10.0.0.2", 9000);
    with(&of_worker(&illness), |it| {
        it.keeps = Some(|event| matches!(event, AsyncEvent::LastWqeReached(_)));
    });
    let now = hosts.now();
    hosts.hosts[1].leave(now);
    let rows = |hosts: &Hosts| hosts.hosts[0].control().connection_rows().count();
    hosts.until("told", |hosts| hosts.connections(0).is_empty());
    assert_eq!(rows(&hosts), 1, "the device still has something of it");
    for round in 1..10 {
        hosts.hosts[0].step(now + LATE * round);
    }
    assert_eq!(hosts.hosts[0].failed(), None);
    assert_eq!((rows(&hosts), hosts.hosts[0].driver().counts().given_up), (0, 1));
    assert_eq!(hosts.hosts[0].failed(), None);
}

#[test]
fn a_device_that_keeps_what_it_has_of_datagrams_is_lost() {
    let fabric = Running::start("a_device_that_keeps_what_it_has", 2, Manager::Ours);
    let (mut hosts, illness) = two(&fabric, "ud");
    with(&of_worker(&illness), |it| {
        it.loses =
            Some(|it| it.kind == CompletionKind::Recv && it.status == CompletionStatus::Flushed);
    });
    let now = hosts.now();
    hosts.hosts[0].leave(now);
    hosts.step();
    hosts.hosts[0].step(now + LATE);
    let failed = hosts.hosts[0].failed();
    assert!(matches!(failed, Some(VerbsError::Lost { what: "queue pair", .. })), "{failed:?}");
}

#[test]
fn repeated_completions_are_ignored() {
    let fabric = Running::start("completions_that_come_twice", 2, Manager::Ours);
    let (mut hosts, illness) = two(&fabric, "rc");
    with(&illness, |it| it.repeats = true);
    with(&of_worker(&illness), |it| it.repeats = true);
    for bytes in [56, 9000] {
        hosts.must_answer(0, "10.0.0.2", bytes);
    }
    let now = hosts.now();
    hosts.hosts[0].leave(now);
    hosts.until("left", |hosts| hosts.hosts[0].has_left());
}

#[test]
fn a_thousand_management_datagrams_at_once_all_leave() {
    let fabric = Running::start("a_thousand_management_datagrams", 1, Manager::Ours);
    let opened = pollux_node::open(&fabric.port(1)).expect("the port is free");
    let port = DevicePort::new(opened).expect("it has all it needs");
    let mut port = port.context(PKey::DEFAULT).expect("it has space");
    let mut received = Vec::new();
    let view = loop {
        while port.async_event().expect("it works").is_some() {}
        let view = port.view().expect("it is there");
        if view.state == PortState::ACTIVE {
            break view;
        }
    };
    let peer = MadAddress::gsi(view.sm_lid, 0, PKey::DEFAULT);
    let mad = CmMessage::Dreq(Dreq::default()).emit_mad(0x0123_4567_89ab_cdef);
    for _ in 0..1000 {
        assert_eq!(port.send(&Envelope { peer, mad }), None, "it goes by queue pair 1");
    }
    while !port.is_idle() {
        port.poll(Time::START, &mut received).expect("it works");
    }
    assert_eq!(port.drops().unsent, 0);
}

#[test]
fn a_datagram_that_is_no_mad_is_counted_and_the_next_one_serves() {
    let fabric = Running::start("a_datagram_that_is_no_mad", 1, Manager::Ours);
    let (opened, illness) = ailing(&fabric.port(1));
    with(&illness, |it| it.shortens = true);
    let mut hosts = Hosts::opened(vec![(opened, "10.0.0.1/24")], "mode = 'ud'");
    hosts.until("counted", |hosts| hosts.hosts[0].interface().mad_drops().malformed > 0);
    assert!(!hosts.hosts[0].control().is_up());
    with(&illness, |it| it.shortens = false);
    hosts.come_up();
    assert_eq!(hosts.hosts[0].interface().mad_drops().unsent, 0);
}

#[test]
fn a_port_that_went_down_and_up_at_once_is_taken_for_forgotten() {
    let fabric = Running::start("a_port_that_went_down_and_up", 1, Manager::Ours);
    let (opened, illness) = ailing(&fabric.port(1));
    let mut hosts = Hosts::opened(vec![(opened, "10.0.0.1/24")], "mode = 'ud'");
    hosts.come_up();
    with(&illness, |it| it.events.extend([AsyncEvent::PortError(1), AsyncEvent::PortActive(1)]));
    let begun = hosts.now();
    hosts.until("some time", |hosts| hosts.now() > begun + Duration::from_millis(200));
    drop(hosts);
    // A MAD of queue pair 1 stands behind LRH, BTH and DETH.
    let mads = fabric.end();
    let mads = mads.iter().filter_map(|packet| packet.get(28..)?.first_chunk::<MAD_LEN>());
    let mut joins = BTreeMap::<Gid, usize>::new();
    for mad in mads.map(SaMad::parse) {
        let header = mad.header;
        if (header.mgmt_class, header.method) == (MgmtClass::SUBN_ADM, Method::SET)
            && let Ok((_, record)) = mad.record::<McMemberRecord>()
        {
            *joins.entry(record.mgid).or_default() += 1;
        }
    }
    assert!(joins.len() > 1 && joins.values().all(|count| *count > 1), "{joins:?}");
}

#[test]
fn actions_that_a_device_refuses_are_reported_and_retried() {
    let fabric = Running::start("what_a_device_refuses", 2, Manager::Ours);
    let (first, illness) = ailing(&fabric.port(1));
    with(&illness, |it| it.refuses.push("attach_multicast"));
    let second = pollux_node::open(&fabric.port(2)).expect("the port is free");
    let devices = vec![(first, "10.0.0.1/24"), (second, "10.0.0.2/24")];
    let mut hosts = Hosts::opened(devices, "mode = 'ud'");
    hosts.come_up();
    let undone: Vec<_> = hosts.hosts[0].driver().undone().collect();
    let is_attach = |action: &Action| matches!(action, Action::Attach { .. });
    assert!(!undone.is_empty() && undone.iter().all(|(action, _)| is_attach(action)));
    assert!(undone[0].1.to_string().contains("attach_multicast"), "{}", undone[0].1);
    with(&of_worker(&illness), |it| it.refuses.clear());
    hosts.until("all is done", |hosts| hosts.hosts[0].driver().undone().next().is_none());
    // Queries for it name its groups.
    let peer = hosts.link_local(0);
    hosts.must_answer(1, &peer, 56);
    hosts.must_answer(1, "10.0.0.1", 56);
}

/// A packet of UDP, as far as anybody here looks.
fn packet(payload: u8) -> Vec<u8> {
    let (source, destination) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let (protocol, ttl) = (IpProtocol::UDP, 64);
    let header = Ipv4Header { protocol, ttl, source, destination, ..Ipv4Header::default() };
    let mut packet = vec![0; Ipv4Header::LEN + 64];
    header.write_packet(&[], 64, &mut packet).expect("it fits").fill(payload);
    packet
}

#[test]
fn packets_that_wait_for_space_are_not_overtaken() {
    let fabric = Running::start("what_waits_for_room", 2, Manager::Ours);
    let (mut hosts, illness) = two(&fabric, "ud");
    hosts.must_answer(0, "10.0.0.2", 56);
    let now = hosts.now();
    hosts.hosts[1].interface_mut().serve_sockets(now);
    let illness = of_worker(&illness);
    with(&illness, |it| it.is_full = true);
    let now = hosts.now();
    hosts.hosts[0].send(now, &packet(1)).expect("it waits");
    with(&illness, |it| it.is_full = false);
    hosts.hosts[0].send(now, &packet(2)).expect("so does this");
    let mut came = Vec::new();
    hosts.until("both", |hosts| {
        let next = std::iter::from_fn(|| hosts.hosts[1].0.worker.poll_delivery());
        came.extend(next.filter(|it| it.packet[9] == IpProtocol::UDP.0).map(|it| it.packet[63]));
        came.len() == 2
    });
    assert_eq!(came, [1, 2]);
}

// req: cm-linux-dialect
#[test]
fn data_opens_a_connection_whose_confirmation_was_lost() {
    let fabric = Running::start("data_opens_a_connection", 2, Manager::Ours);
    let first = pollux_node::open(&fabric.port(1)).expect("the port is free");
    let (second, illness) = ailing(&fabric.port(2));
    let devices = vec![(first, "10.0.0.1/24"), (second, "10.0.0.2/24")];
    let mut hosts = Hosts::opened(devices, "mode = 'rc'");
    hosts.come_up();
    let (now, timeout) = (hosts.now(), Duration::from_secs(10));
    let to = Ipv4Addr::new(10, 0, 0, 2).into();
    hosts.hosts[0].ping(now, to, 9000, timeout).expect("it is up");
    hosts.until("rep-sent", |hosts| {
        hosts.hosts[1].control().connection_rows().any(|row| row.state == "rep-sent")
    });
    with(&illness, |it| it.loses = Some(|it| it.qpn == Qpn::GSI && it.kind.is_recv()));
    let begun = hosts.now();
    hosts.until("open", |hosts| !hosts.connections(1).is_empty());
    let took = hosts.now().since_start() - begun.since_start();
    assert!(took < timeout, "{took:?}");
}
