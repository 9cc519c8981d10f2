//! Every state of an interface with everything that can happen in it, and what it leaves behind.

use crate::alone::Alone;
use crate::world::World;
use pollux_control::ipoib::{InterfaceConfig, InterfaceState};
use pollux_fabric::sm::SmConfig;
use pollux_verbs::time::Time;
use pollux_wire::address::Lid;
use pollux_wire::keys::PKey;
use pollux_wire::mad::MadStatus;
use pollux_wire::mad::smp::PortState;
use pollux_wire::units::Mtu;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

type Bring = fn() -> Alone;
type Happen = fn(&mut Alone);

const STATES: [(&str, Bring); 12] = [
    ("no port", || alone(|config| config)),
    ("closed", || {
        let mut alone = up();
        alone.interface.set_open(alone.now, false);
        alone.grant_all();
        alone
    }),
    ("port down", || {
        let mut alone = up();
        alone.see(|port| port.state = PortState::DOWN);
        alone
    }),
    ("no P_Key", || {
        let mut alone = up();
        alone.see(|port| port.pkeys = vec![PKey(0x8001)]);
        alone
    }),
    ("limited member", || {
        let mut alone = up();
        alone.see(|port| port.pkeys = vec![PKey(0x7fff)]);
        alone
    }),
    ("joining", || {
        let mut alone = alone(|config| config);
        alone.see(|_| {});
        alone
    }),
    ("creating", || {
        let mut alone =
            alone(|config| InterfaceConfig { create: Some(Default::default()), ..config });
        alone.see(|_| {});
        assert!(alone.answer(JOIN, MadStatus::SA_NO_RECORDS, Mtu::BYTES_2048));
        alone
    }),
    ("paused", || paused(3)),
    ("too small", || {
        let mut alone = alone(|config| config);
        alone.see(|_| {});
        assert!(alone.answer(JOIN, MadStatus::OK, Mtu::BYTES_1024));
        alone
    }),
    ("up", up),
    ("up, and to join again", || {
        let mut alone = up();
        alone.interface.handle_reregister(alone.now);
        while !matches!(
            alone.interface.state(),
            InterfaceState::Up { failures: 1, rejoin: Some(_), .. }
        ) {
            alone.pass(Duration::from_millis(100));
            assert!(alone.now < Time::START + 60 * SECOND, "{:?}", alone.interface.state());
        }
        alone
    }),
    ("up, and joining again", || {
        let mut alone = up();
        alone.interface.handle_reregister(alone.now);
        alone
    }),
];

const EVENTS: [(&str, Happen); 16] = [
    ("port active", |it| it.see(|port| port.state = PortState::ACTIVE)),
    ("port down", |it| it.see(|port| port.state = PortState::DOWN)),
    ("other LID", |it| it.see(|port| port.lid = Lid(6))),
    ("P_Key removed", |it| it.see(|port| port.pkeys = vec![PKey(0x8001)])),
    ("P_Key limited", |it| it.see(|port| port.pkeys = vec![PKey(0x7fff)])),
    ("P_Key full", |it| it.see(|port| port.pkeys = vec![PKey::DEFAULT])),
    ("other SM", |it| it.see(|port| port.sm_lid = Lid(2))),
    ("reregister", |it| it.interface.handle_reregister(it.now)),
    ("taken down", |it| it.interface.set_open(it.now, false)),
    ("taken up", |it| it.interface.set_open(it.now, true)),
    ("due", |it| {
        let due = it.interface.poll_timeout().filter(|due| *due > it.now);
        let left = due.map(|due| due.since_start() - it.now.since_start());
        it.pass(left.unwrap_or(Duration::ZERO));
    }),
    ("granted", |it| answer(it, MadStatus::OK, Mtu::BYTES_2048)),
    ("granted, small", |it| answer(it, MadStatus::OK, Mtu::BYTES_1024)),
    ("no such group", |it| answer(it, MadStatus::SA_NO_RECORDS, Mtu::BYTES_2048)),
    ("denied", |it| answer(it, MadStatus::SA_DENIED, Mtu::BYTES_2048)),
    ("silence", Alone::be_silent),
];

const JOIN: &str = "join broadcast";
const CREATE: &str = "create broadcast";

fn alone(adjust: impl Fn(InterfaceConfig) -> InterfaceConfig) -> Alone {
    Alone::new(adjust)
}

fn up() -> Alone {
    let mut alone = alone(|config| config);
    alone.up();
    alone
}

/// Refused so many times.
fn paused(times: u32) -> Alone {
    let mut alone = alone(|config| config);
    alone.see(|_| {});
    for _ in 0..times {
        if let InterfaceState::Paused { until, .. } = *alone.interface.state() {
            alone.pass(until.since_start() - alone.now.since_start());
        }
        assert!(alone.answer(JOIN, MadStatus::SA_DENIED, Mtu::BYTES_2048));
    }
    alone
}

/// The answer to whatever the interface asks of the broadcast group.
fn answer(alone: &mut Alone, status: MadStatus, mtu: Mtu) {
    _ = alone.answer(JOIN, status, mtu) || alone.answer(CREATE, status, mtu);
}

/// The state, with what counts in it; when it changes by itself, in seconds from now.
fn state(alone: &Alone) -> String {
    let left = |until: Time| until.since(alone.now).as_secs();
    match alone.interface.state() {
        InterfaceState::Joining { creates, failures, .. } => {
            let what = if *creates { "creating" } else { "joining" };
            format!("{what}, {failures} failures")
        }
        InterfaceState::PortDown(state) => format!("port down {state:?}"),
        InterfaceState::Paused { error, failures, until, .. } => {
            format!("paused, {error:?} {failures}, {} s", left(*until))
        }
        InterfaceState::TooSmall { until, .. } => format!("too small, {} s", left(*until)),
        InterfaceState::Up { link, failures: 0, rejoin: None, .. } => {
            format!("up at {}", link.lid.0)
        }
        InterfaceState::Up { link, failures, rejoin, .. } => {
            let again = rejoin.map_or("asked".into(), |until| format!("{} s", left(until)));
            format!("up at {}, {failures} failures, {again}", link.lid.0)
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn every_state_of_an_interface_and_everything_that_can_happen() {
    let mut table = String::new();
    for (name, bring) in STATES {
        let mut before = bring();
        before.said();
        writeln!(table, "{name}: {}", state(&before)).unwrap();
        for (event, happen) in EVENTS {
            let mut alone = bring();
            alone.said();
            let before = state(&alone);
            happen(&mut alone);
            let said = alone.said().join(", ");
            let after = state(&alone);
            if said.is_empty() && before == after {
                continue;
            }
            let said = if said.is_empty() { "-" } else { &said };
            writeln!(table, "    {event}: {said} / {after}").unwrap();
        }
    }
    assert!(table == include_str!("state.txt"), "{table}");
}

#[test]
fn an_interface_that_pauses_joins_at_once_when_the_subnet_manager_is_new() {
    let news: [Happen; 2] =
        [|it| it.interface.handle_reregister(it.now), |it| it.see(|port| port.sm_lid = Lid(2))];
    for happens in news {
        let mut alone = paused(6);
        let InterfaceState::Paused { failures: 6, until, .. } = *alone.interface.state() else {
            panic!("{:?}", alone.interface.state())
        };
        assert_eq!(until, alone.now + 16 * SECOND, "the longest pause");
        alone.said();
        happens(&mut alone);
        assert_eq!(alone.said(), [JOIN], "without waiting");
        assert!(alone.answer(JOIN, MadStatus::SA_DENIED, Mtu::BYTES_2048));
        let InterfaceState::Paused { failures: 1, until, .. } = *alone.interface.state() else {
            panic!("failures at the other manager count: {:?}", alone.interface.state())
        };
        assert_eq!(until, alone.now + SECOND, "the shortest pause");
        assert!(
            alone.answer(JOIN, MadStatus::OK, Mtu::BYTES_2048) || {
                alone.pass(SECOND);
                alone.answer(JOIN, MadStatus::OK, Mtu::BYTES_2048)
            }
        );
        assert!(alone.interface.is_up());
    }
}

/// Reports that each host gets while the last one creates and leaves a group.
fn reports(world: &mut World, group: u8) -> Vec<u64> {
    let before = world.reports.clone();
    let (now, last) = (world.now, world.hosts.len() - 1);
    let ip = IpAddr::V4(Ipv4Addr::new(239, 1, 2, group));
    assert!(world.hosts[last].interface.join(now, ip));
    world.pass(SECOND);
    world.hosts[last].interface.leave(now, ip);
    world.pass(SECOND);
    world.reports.iter().zip(before).map(|(now, before)| now - before).collect()
}

#[test]
fn an_interface_that_leaves_takes_its_subscriptions_back() {
    let mut world = World::up(31, 3);
    assert_eq!(reports(&mut world, 1), [2, 2, 2], "made and gone, to all");
    let now = world.now;
    world.hosts[0].interface.set_open(now, false);
    world.settle();
    assert_eq!(reports(&mut world, 2), [0, 2, 2], "none to who left");
    world.hosts[0].interface.set_open(now, true);
    world.pass(5 * SECOND);
    world.assert_up();
    assert_eq!(reports(&mut world, 3), [2, 2, 2], "and again to who came back");
}

#[test]
fn after_a_change_of_lids_a_leaving_interface_unsubscribes_the_new_lid() {
    let mut world = World::up(32, 3);
    let guid = |world: &World, nth: usize| {
        let at = world.hosts[nth].at;
        world.subnet.nodes()[at.node as usize].gid(at.port).guid()
    };
    let lids = [0, 1, 2].map(|nth| world.view(nth).lid);
    let swapped = (0..3).map(|nth| (guid(&world, nth), lids[(nth + 1) % 3])).collect();
    let manager = world.manager();
    world.managers.stop(&mut world.subnet, manager);
    let config = SmConfig { lids: swapped, ..SmConfig::default() };
    world.managers.start(&mut world.subnet, manager, config);
    world.pass(20 * SECOND);
    world.assert_up();
    assert_eq!(world.view(0).lid, lids[1], "the manager did as it was told");
    assert_eq!(reports(&mut world, 1), [2, 2, 2]);
    let now = world.now;
    world.hosts[0].interface.set_open(now, false);
    world.settle();
    assert_eq!(reports(&mut world, 2), [0, 2, 2]);
}
