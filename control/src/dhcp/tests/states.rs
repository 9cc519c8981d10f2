//! Every state and everything that can happen in it, as one table.
//!
//! A cell says what is sent and what is reported, a slash, and the state then; `.` is the same
//! state, `-` nothing.

use super::*;
use std::fmt::Write;

const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 43);
const STATES: [&str; 8] =
    ["stopped", "init", "selecting", "requesting", "checking", "bound", "renewing", "rebinding"];

fn name(client: &Dhcp) -> &'static str {
    match client.state().0 {
        DhcpState::Stopped => "stopped",
        DhcpState::Init { .. } => "init",
        DhcpState::Selecting { .. } => "selecting",
        DhcpState::Requesting { .. } => "requesting",
        DhcpState::Checking { .. } => "checking",
        DhcpState::Bound { .. } => "bound",
        DhcpState::Renewing { .. } => "renewing",
        DhcpState::Rebinding { .. } => "rebinding",
    }
}

/// A client in a state, the time of its transition, and its last message.
fn bring(to: &str) -> (Dhcp, Time, Option<Said>) {
    let (mut client, mut now, mut last) = (client(), at(0), None);
    while name(&client) != to {
        match name(&client) {
            "stopped" => client.start(now),
            "requesting" => {
                let ack = last.as_ref().map(|said| reply(said, DhcpKind::ACK, GIVEN, SERVER));
                client.handle_packet(now, &ack.expect("it asked"));
            }
            "checking" => client.handle_free(now, GIVEN),
            "selecting" => {
                let offer = last.as_ref().map(|said| reply(said, DhcpKind::OFFER, GIVEN, SERVER));
                client.handle_packet(now, &offer.expect("it asked"));
            }
            _ => {
                now = client.poll_timeout().expect("it waits for a time");
                client.handle_timeout(now);
            }
        }
        last = sent(&mut client, now).pop().or(last);
    }
    events(&mut client);
    (client, now, last)
}

type Event = (&'static str, fn(&mut Dhcp, Time, Option<&Said>));

/// The answer of a server to the last message, if there was one.
macro_rules! answer {
    ($kind:ident, $ip:expr, $server:expr) => {
        |client, now, last| {
            if let Some(last) = last {
                client.handle_packet(now, &reply(last, DhcpKind::$kind, $ip, $server));
            }
        }
    };
}

const EVENTS: [Event; 13] = [
    ("start", |client, now, _| client.start(now)),
    ("link", |client, now, _| client.handle_link(now)),
    ("stop", |client, now, _| client.stop(now)),
    ("OFFER", answer!(OFFER, GIVEN, SERVER)),
    ("ACK", answer!(ACK, GIVEN, SERVER)),
    ("ACK, other address", answer!(ACK, OTHER, SERVER)),
    ("NAK", answer!(NAK, Ipv4Addr::UNSPECIFIED, SERVER)),
    ("NAK, other server", answer!(NAK, Ipv4Addr::UNSPECIFIED, OTHER)),
    ("free", |client, now, _| client.handle_free(now, GIVEN)),
    ("other is free", |client, now, _| client.handle_free(now, OTHER)),
    ("taken", |client, now, _| client.handle_taken(now, GIVEN)),
    ("other is taken", |client, now, _| client.handle_taken(now, OTHER)),
    ("timeout", |client, _, _| {
        let due = client.poll_timeout();
        due.into_iter().for_each(|due| client.handle_timeout(due));
    }),
];

/// The output of the client.
fn outcome(client: &mut Dhcp, now: Time) -> String {
    let said = sent(client, now).into_iter().map(|said| match said.kind() {
        DhcpKind::DISCOVER => "DISCOVER",
        DhcpKind::REQUEST => "REQUEST",
        DhcpKind::DECLINE => "DECLINE",
        DhcpKind::RELEASE => "RELEASE",
        other => panic!("{other:?}"),
    });
    let mut all: Vec<_> = said.collect();
    all.extend(events(client).iter().map(|event| match event {
        DhcpEvent::Check(_) => "check",
        DhcpEvent::Bound(_) => "bound",
        DhcpEvent::Lost(_) => "lost",
    }));
    if all.is_empty() { "-".to_owned() } else { all.join("+") }
}

#[test]
fn every_state_and_everything_that_can_happen() {
    let mut table = String::new();
    for start in STATES {
        writeln!(table, "{start}").unwrap();
        for (event, happen) in EVENTS {
            let (mut client, now, last) = bring(start);
            happen(&mut client, now, last.as_ref());
            let (outcome, after) = (outcome(&mut client, now), name(&client));
            let after = if after == start { "." } else { after };
            let uses = matches!(name(&client), "bound" | "renewing" | "rebinding");
            assert_eq!(client.lease().is_some(), uses, "{start}, {event}");
            let is_waiting = client.poll_timeout().is_some();
            let waits = !matches!(name(&client), "stopped" | "checking");
            assert_eq!(is_waiting, waits, "{start}, {event}: nothing would ever happen");
            if (outcome.as_str(), after) != ("-", ".") {
                writeln!(table, "    {event:<18} {outcome} / {after}").unwrap();
            }
        }
    }
    assert!(table == include_str!("states.txt"), "\n{table}");
}
