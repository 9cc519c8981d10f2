//! What an interface makes of a device that does not do all that it should.

use crate::device::{Illness, ailing};
use crate::fabric::{Manager, Running};
use crate::host::Hosts;
use pollux_control::mad::{Envelope, MadAddress};
use pollux_node::interface::mover::{Arrived, Mover};
use pollux_verbs::time::Time;
use pollux_verbs::{AsyncEvent, CompletionKind, CompletionStatus, VerbsError};
use pollux_wire::address::Scope;
use pollux_wire::keys::PKey;
use pollux_wire::mad::cm::{CmMessage, Dreq};
use pollux_wire::mad::smp::PortState;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than a device may take for anything.
const LATE: Duration = Duration::from_secs(6);

/// Two interfaces of a mode that are up, and the illness of the first one's device.
fn two(fabric: &Running, mode: &str) -> (Hosts, Arc<Mutex<Illness>>) {
    let (first, illness) = ailing(&fabric.port(1));
    let second = pollux_node::open(&fabric.port(2)).expect("the port is free");
    let keys = format!("mode = {mode:?}");
    let mut hosts = Hosts::opened(vec![(first, "10.0.0.1/24"), (second, "10.0.0.2/24")], &keys);
    hosts.come_up();
    (hosts, illness)
}

fn with(illness: &Mutex<Illness>, change: impl FnOnce(&mut Illness)) {
    change(&mut illness.lock().expect("no test has panicked"));
}

#[test]
fn an_interface_whose_device_loses_something_fails_and_says_what() {
    let fabric = Running::start("an_interface_whose_device_loses", 1, Manager::Ours);
    let losses: [(fn(&Illness) -> AsyncEvent, &str); 4] = [
        (|_| AsyncEvent::DeviceFatal, "adapter"),
        (|it| AsyncEvent::CqError(it.cqs[0]), "completion queue"),
        (|it| AsyncEvent::CqError(it.cqs[1]), "completion queue"),
        (|it| AsyncEvent::SrqError(it.srqs[0]), "shared receive queue"),
    ];
    for (loss, lost) in losses {
        let (opened, illness) = ailing(&fabric.port(1));
        let mut hosts = Hosts::opened(vec![(opened, "10.0.0.1/24")], "mode = 'rc'");
        hosts.come_up();
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
    with(&illness, |it| it.keeps = Some(|event| matches!(event, AsyncEvent::LastWqeReached(_))));
    let now = hosts.now();
    hosts.hosts[0].leave(now);
    let rows = |hosts: &Hosts| hosts.hosts[0].control().connection_rows().count();
    hosts.until("stopped", |hosts| hosts.hosts[0].mover().station().is_stopped());
    assert_eq!(rows(&hosts), 1, "the device still has something of it");
    // Neither may goodbyes take so long.
    for round in 1..10 {
        hosts.hosts[0].step(now + LATE * round);
    }
    assert_eq!(hosts.hosts[0].failed(), None);
    assert_eq!((rows(&hosts), hosts.hosts[0].mover().counts().given_up), (0, 1));
    assert_eq!(hosts.hosts[0].failed(), None);
}

#[test]
fn a_device_that_keeps_what_it_has_of_datagrams_is_lost() {
    let fabric = Running::start("a_device_that_keeps_what_it_has", 2, Manager::Ours);
    let (mut hosts, illness) = two(&fabric, "ud");
    with(&illness, |it| {
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
fn completions_that_come_twice_are_survived() {
    let fabric = Running::start("completions_that_come_twice", 2, Manager::Ours);
    let (mut hosts, illness) = two(&fabric, "rc");
    with(&illness, |it| it.repeats = true);
    for octets in [56, 9000] {
        hosts.must_answer(0, "10.0.0.2", octets);
    }
    let now = hosts.now();
    hosts.hosts[0].leave(now);
    hosts.until("left", |hosts| hosts.hosts[0].has_left());
}

#[test]
fn a_thousand_management_datagrams_at_once_all_leave() {
    let fabric = Running::start("a_thousand_management_datagrams", 1, Manager::Ours);
    let opened = pollux_node::open(&fabric.port(1)).expect("the port is free");
    let mover = Mover::new(opened.into(), PKey::DEFAULT, Scope::LINK_LOCAL, None, 1);
    let mut mover = mover.expect("it has all it needs");
    while mover.port().expect("it is there").state != PortState::ACTIVE {
        mover.poll(Time::START, &mut Arrived::default()).expect("it works");
    }
    let peer = MadAddress::gsi(mover.port().expect("it is there").sm_lid, 0, PKey::DEFAULT);
    let mad = CmMessage::Dreq(Dreq::default()).emit_mad(0x0123_4567_89ab_cdef);
    for _ in 0..1000 {
        mover.send_mad(&Envelope { peer, mad });
    }
    while !mover.is_idle() {
        mover.poll(Time::START, &mut Arrived::default()).expect("it works");
    }
    assert_eq!(mover.mads_unsent(), 0);
}
