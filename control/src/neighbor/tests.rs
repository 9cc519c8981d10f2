//! Tests of every state with every input, of the limits of the table, and of the table against an
//! oracle.

use super::state::{Ask, Input, Rules};
use super::*;
use pollux_wire::address::{Gid, Guid, Qpn};
use proptest::prelude::*;
use std::fmt::Write;
use std::net::Ipv4Addr;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

fn at(seconds: u64) -> Time {
    Time::START + Duration::from_secs(seconds)
}

fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

fn link(qpn: u32) -> LinkAddress {
    let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_1001));
    LinkAddress { rc: true, uc: false, qpn: Qpn(qpn), gid }
}

/// The address of queue pair `qpn` at another port.
fn elsewhere(qpn: u32) -> LinkAddress {
    let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0000_2001));
    LinkAddress { gid, ..link(qpn) }
}

fn claim(last: u8, qpn: u32, kind: ClaimKind) -> Claim {
    Claim { ip: ip(last), address: Some(link(qpn)), kind }
}

const ANSWERED: ClaimKind = ClaimKind::Answer { solicited: true, override_cached: true };
const ANNOUNCED: ClaimKind = ClaimKind::Answer { solicited: false, override_cached: true };

fn cache(config: NeighborConfig) -> Neighbors<u32> {
    Neighbors::new(config, 1)
}

fn events(cache: &mut Neighbors<u32>) -> Vec<NeighborEvent<u32>> {
    std::iter::from_fn(|| cache.poll_event()).collect()
}

fn asked(cache: &mut Neighbors<u32>) -> Vec<Solicitation> {
    std::iter::from_fn(|| cache.poll_transmit()).collect()
}

/// Handles timeouts until nothing is due before `end`; returns the time of the last one.
fn run(cache: &mut Neighbors<u32>, end: Time) -> Time {
    let mut now = Time::START;
    while let Some(due) = cache.poll_timeout().filter(|due| *due <= end) {
        now = due;
        cache.handle_timeout(now);
    }
    now
}

/// A state and its request in short: the address by its QPN, times in seconds.
fn short(step: state::Step<LinkAddress>) -> String {
    let seconds = |time: Time| time.since_start().as_secs();
    let state = match step.next {
        None => "-".into(),
        Some(State::Incomplete { asked, rounds, failures, .. }) => {
            format!("Incomplete {asked}/{rounds} failed {failures}")
        }
        Some(State::Failed { failures, until, forget }) => {
            format!("Failed {failures} until {} forget {}", seconds(until), seconds(forget))
        }
        Some(State::Probe { address, asked, rival, .. }) => {
            let rival = rival.map_or(String::new(), |rival| format!(" against {}", rival.qpn.0));
            format!("Probe {} {asked}{rival}", address.qpn.0)
        }
        Some(State::Stale { address, is_confirmed: false, .. }) => {
            format!("stale {}, unconfirmed", address.qpn.0)
        }
        Some(state) => {
            let qpn = state.address().map_or(0, |address| address.qpn.0);
            format!("{} {qpn}", state.name())
        }
    };
    match step.ask {
        None => state,
        Some(Ask::Everyone) => format!("{state}, ask all"),
        Some(Ask::At(address)) => format!("{state}, ask {}", address.qpn.0),
        Some(Ask::Later) => format!("{state}, ask later"),
    }
}

/// The table of states and inputs, for comparison with RFC 4861, appendix C.
#[test]
fn every_state_with_every_input() {
    let address = link(1);
    let until = at(100);
    let states = [
        State::Incomplete { asked: 1, rounds: 1, until, failures: 0 },
        State::Incomplete { asked: 3, rounds: 3, until, failures: 2 },
        State::Reachable { address, until },
        State::Stale { address, until: Some(until), is_confirmed: true },
        State::Delay { address, until },
        State::Probe { address, asked: 1, until, rival: None },
        State::Probe { address, asked: 3, until, rival: None },
        State::Probe { address, asked: 1, until, rival: Some(elsewhere(2)) },
        State::Probe { address, asked: 3, until, rival: Some(elsewhere(2)) },
        State::Failed { failures: 1, until, forget: at(101) },
        State::Failed { failures: 1, until: at(101), forget: at(102) },
        State::Permanent { address },
    ];
    let answer =
        |address, solicited, override_cached| Input::Answer { address, solicited, override_cached };
    let inputs = [
        ("use", Input::Use),
        ("due", Input::Due),
        ("answer without address", answer(None, true, true)),
        ("answer, same", answer(Some(link(1)), true, false)),
        ("answer, other", answer(Some(link(2)), true, true)),
        ("answer, other, no override", answer(Some(link(2)), true, false)),
        ("answer, other port", answer(Some(elsewhere(3)), true, true)),
        ("announced, other port", answer(Some(elsewhere(3)), false, true)),
        ("requests, other port", Input::Request { address: elsewhere(3) }),
        ("announced, same", answer(Some(link(1)), false, true)),
        ("announced, other", answer(Some(link(2)), false, true)),
        ("announced, other, no override", answer(Some(link(2)), false, false)),
        ("requests, same", Input::Request { address: link(1) }),
        ("requests, other", Input::Request { address: link(2) }),
        ("confirmed", Input::Confirmation),
        ("doubted", Input::StaleHint),
    ];
    let config = NeighborConfig::default();
    let mut table = String::new();
    for state in states {
        writeln!(table, "{}", short(state.into())).unwrap();
        for (name, input) in inputs {
            let (mut rng, mut broadcasts) = (SeededRng::new(1), RateLimit::new(10, 10));
            let mut contests = broadcasts.clone();
            let (config, rng) = (&config, &mut rng);
            let (broadcasts, contests) = (&mut broadcasts, &mut contests);
            let mut rules = Rules { config, rng, broadcasts, contests };
            let step = state.after(until, input, &mut rules);
            if step != state.into() {
                writeln!(table, "    {name}: {}", short(step)).unwrap();
            }
        }
    }
    assert!(table == include_str!("states.txt"), "{table}");
}

#[test]
fn a_packet_waits_for_the_answer_and_later_ones_do_not() {
    let mut cache = cache(NeighborConfig::default());
    assert_eq!(cache.resolve(at(0), ip(2), 7), Resolution::Waits);
    assert_eq!(cache.resolve(at(0), ip(2), 8), Resolution::Waits);
    assert_eq!(asked(&mut cache), [Solicitation { ip: ip(2), at: None }], "once for both");
    cache.handle_claim(at(0), claim(2, 5, ANSWERED));
    let resolved = NeighborEvent::Resolved(ip(2), link(5), vec![7, 8]);
    assert_eq!(events(&mut cache), [resolved]);
    assert_eq!(cache.resolve(at(1), ip(2), 9), Resolution::Known(link(5), 9));
    let row = cache.rows().next().unwrap();
    assert_eq!((row.since, row.why, row.pending, row.used), (at(0), "answered", 0, at(1)));
    assert_eq!(row.state.waits_for(), "the end of the reachable time");
}

#[test]
fn pauses_grow_without_an_answer() {
    let mut cache = cache(NeighborConfig { idle_for: None, ..NeighborConfig::default() });
    let mut now = Time::START;
    let mut pauses = Vec::new();
    for packet in 0..9 {
        assert_eq!(cache.resolve(now, ip(2), packet), Resolution::Waits);
        while cache.rows().all(|row| row.state.name() == "incomplete") {
            now = cache.poll_timeout().unwrap();
            cache.handle_timeout(now);
        }
        assert_eq!(events(&mut cache), [NeighborEvent::Unreachable(ip(2), vec![packet])]);
        assert_eq!(asked(&mut cache).len(), 3);
        assert_eq!(cache.resolve(now, ip(2), 99), Resolution::Unreachable(99));
        assert_eq!(asked(&mut cache), [], "no broadcast for it");
        let Some(State::Failed { until, .. }) = cache.rows().next().map(|row| row.state) else {
            panic!("it has failed");
        };
        pauses.push((until.nanos() - now.nanos()) / 1_000_000_000);
        now = until;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    assert_eq!(cache.drops().of(NeighborDrop::Unreachable), 9);
    run(&mut cache, at(100_000));
    assert_eq!(cache.rows().count(), 0, "forgotten when nobody sends");
}

// req: ud-qpn-change
#[test]
fn a_peer_that_changed_its_queue_pair_is_found_again() {
    let mut cache = cache(NeighborConfig::default());
    cache.resolve(at(0), ip(2), 1);
    cache.handle_claim(at(0), claim(2, 5, ANSWERED));
    events(&mut cache);
    asked(&mut cache);
    // The neighbor's QPN is 6 now; packets to 5 are lost.
    let (mut now, mut questions, mut changes) = (at(0), Vec::new(), Vec::new());
    while now < at(120) && changes.len() < 2 {
        let _ = cache.resolve(now, ip(2), 2);
        now = now + SECOND;
        cache.handle_timeout(now);
        for question in asked(&mut cache) {
            questions.push(question.at.map(|at| at.qpn.0));
            if question.at.is_none() {
                cache.handle_claim(now, claim(2, 6, ANSWERED));
            }
        }
        changes.extend(events(&mut cache));
    }
    assert_eq!(questions, [Some(5), Some(5), Some(5), None]);
    assert_eq!(changes[0], NeighborEvent::Lost(ip(2), link(5)));
    let NeighborEvent::Resolved(_, address, ref packets) = changes[1] else { panic!() };
    assert_eq!((address, packets), (link(6), &vec![]), "asked and answered in one second");
    assert!(now <= at(45 + 5 + 3 + 2), "within the reachable time, the delay and three probes");
}

// req: ud-qpn-change
#[test]
fn an_announced_change_is_taken_and_then_verified() {
    let mut cache = cache(NeighborConfig::default());
    cache.resolve(at(0), ip(2), 1);
    cache.handle_claim(at(0), claim(2, 5, ANSWERED));
    events(&mut cache);
    asked(&mut cache);
    cache.handle_claim(at(1), claim(2, 6, ANNOUNCED));
    assert_eq!(events(&mut cache), [NeighborEvent::Changed(ip(2), link(5), link(6))]);
    assert_eq!(cache.resolve(at(1), ip(2), 2), Resolution::Known(link(6), 2));
    cache.handle_timeout(at(6));
    assert_eq!(asked(&mut cache), [Solicitation { ip: ip(2), at: Some(link(6)) }]);
}

// req: slides-static
#[test]
fn a_configured_neighbor_is_never_asked_for_nor_changed() {
    let mut cache = cache(NeighborConfig { entries_max: 2, ..NeighborConfig::default() });
    assert!(cache.set_permanent(at(0), ip(2), link(5)));
    assert_eq!(events(&mut cache), [NeighborEvent::Resolved(ip(2), link(5), vec![])]);
    assert_eq!(cache.resolve(at(0), ip(2), 1), Resolution::Known(link(5), 1));
    for kind in [ANSWERED, ANNOUNCED, ClaimKind::Request] {
        cache.handle_claim(at(1), claim(2, 6, kind));
    }
    cache.handle_stale_hint(at(1), ip(2));
    assert_eq!(cache.drops().of(NeighborDrop::ClaimAgainstPermanent), 3);
    assert_eq!(run(&mut cache, at(100_000)), Time::START, "nothing is ever due");
    for last in 3..10 {
        let _ = cache.resolve(at(2), ip(last), 0);
    }
    cache.flush();
    assert_eq!(cache.resolve(at(9999), ip(2), 1), Resolution::Known(link(5), 1));
    assert!(asked(&mut cache).iter().all(|question| question.ip != ip(2)));
    cache.remove(ip(2));
    assert_eq!(cache.address(ip(2)), None);
}

#[test]
fn a_configured_neighbor_gets_its_pending_packets() {
    let mut cache = cache(NeighborConfig::default());
    cache.resolve(at(0), ip(2), 7);
    assert!(cache.set_permanent(at(0), ip(2), link(5)));
    assert_eq!(events(&mut cache), [NeighborEvent::Resolved(ip(2), link(5), vec![7])]);
}

// req: cm-flags-ud-only
#[test]
fn flags_mean_nothing_while_connected_mode_is_off() {
    for connected_mode in [false, true] {
        let mut cache = cache(NeighborConfig { connected_mode, ..NeighborConfig::default() });
        cache.resolve(at(0), ip(2), 1);
        cache.handle_claim(at(0), claim(2, 5, ANSWERED));
        assert_eq!(cache.address(ip(2)).map(|address| address.rc), Some(connected_mode));
        events(&mut cache);
        // Other flags of the same interface are a change only in connected mode.
        let other = Claim { address: Some(link(5).without_flags()), ..claim(2, 5, ANNOUNCED) };
        cache.handle_claim(at(1), other);
        assert_eq!(events(&mut cache).len(), usize::from(connected_mode));
        assert_eq!(cache.rows().next().unwrap().state.name(), "reachable");
    }
}

#[test]
fn unsolicited_claims_make_no_entry_and_evict_none_in_use() {
    let mut cache = cache(NeighborConfig { entries_max: 3, ..NeighborConfig::default() });
    cache.handle_claim(at(0), claim(9, 5, ANNOUNCED));
    cache.handle_claim(at(0), claim(9, 5, ANSWERED));
    assert_eq!((cache.rows().count(), cache.drops().of(NeighborDrop::ClaimUnasked)), (0, 2));
    for last in 1..=3 {
        cache.resolve(at(0), ip(last), 0);
        cache.handle_claim(at(0), claim(last, 5, ANSWERED));
    }
    cache.handle_claim(at(1), claim(9, 5, ClaimKind::Request));
    assert_eq!(cache.drops().of(NeighborDrop::TableFull), 1);
    assert_eq!(cache.address(ip(9)), None);
    // A resolution may evict the least recently used neighbor.
    cache.handle_use(at(2), ip(1));
    assert_eq!(cache.resolve(at(3), ip(9), 0), Resolution::Waits);
    assert_eq!((cache.address(ip(1)).is_some(), cache.address(ip(2))), (true, None));
    assert!(events(&mut cache).contains(&NeighborEvent::Forgotten(ip(2), Some(link(5)), vec![])));
}

#[test]
fn entries_of_unknown_requesters_evict_only_each_other() {
    let mut cache = cache(NeighborConfig { entries_max: 64, ..NeighborConfig::default() });
    for last in 1..=32 {
        cache.resolve(at(0), ip(last), 0);
        cache.handle_claim(at(0), claim(last, 5, ANSWERED));
    }
    run(&mut cache, at(60));
    assert!(cache.rows().all(|row| row.state.name() == "stale"), "idle for long");
    for (number, second) in (0..10_000).zip((60..70).flat_map(|second| [second; 1000])) {
        let ip = Ipv4Addr::from_bits(0x0a00_0100 + number).into();
        let kind = ClaimKind::Request;
        cache.handle_claim(at(second), Claim { ip, address: Some(elsewhere(number)), kind });
    }
    assert!((1..=32).all(|last| cache.address(ip(last)) == Some(link(5))));
    assert_eq!(cache.load().0, 64);
    assert_eq!(cache.drops().of(NeighborDrop::Evicted), 10_000 - 32);
}

#[test]
fn an_address_moves_to_another_port_when_its_own_is_silent_and_not_before() {
    for is_there in [true, false] {
        for kind in [ANNOUNCED, ANSWERED, ClaimKind::Request] {
            let mut cache = cache(NeighborConfig::default());
            cache.resolve(at(0), ip(2), 1);
            cache.handle_claim(at(0), claim(2, 5, ANSWERED));
            events(&mut cache);
            asked(&mut cache);
            let begin = at(1);
            let rival = Claim { ip: ip(2), address: Some(elsewhere(6)), kind };
            cache.handle_claim(begin, rival);
            let mut now = begin;
            let mut questions = asked(&mut cache);
            while cache.rows().any(|row| row.state.name() == "probe") {
                assert_eq!(cache.address(ip(2)), Some(link(5)), "packets go on to where it was");
                cache.handle_claim(now, rival);
                if is_there {
                    cache.handle_claim(now, claim(2, 5, ANSWERED));
                    continue;
                }
                now = cache.poll_timeout().unwrap();
                cache.handle_timeout(now);
                questions.extend(asked(&mut cache));
            }
            let took = now.since_start() - begin.since_start();
            let times = if is_there { 1 } else { 3 };
            assert_eq!(questions, vec![Solicitation { ip: ip(2), at: Some(link(5)) }; times]);
            let changed = match is_there {
                true => vec![],
                false => vec![NeighborEvent::Changed(ip(2), link(5), elsewhere(6))],
            };
            assert_eq!(events(&mut cache), changed);
            assert_eq!(took, if is_there { Duration::ZERO } else { 375 * MILLISECOND });
        }
    }
}

#[test]
fn another_queue_pair_of_the_same_port_is_believed_at_once() {
    let mut cache = cache(NeighborConfig::default());
    cache.resolve(at(0), ip(2), 1);
    cache.handle_claim(at(0), claim(2, 5, ANSWERED));
    events(&mut cache);
    asked(&mut cache);
    cache.handle_claim(at(1), claim(2, 6, ANNOUNCED));
    assert_eq!(events(&mut cache), [NeighborEvent::Changed(ip(2), link(5), link(6))]);
    assert_eq!(asked(&mut cache), []);
}

#[test]
fn an_unused_neighbor_is_removed_with_an_event() {
    let mut cache = cache(NeighborConfig::default());
    cache.handle_claim(at(0), claim(2, 5, ClaimKind::Request));
    events(&mut cache);
    assert_eq!(run(&mut cache, at(299)), Time::START);
    run(&mut cache, at(300));
    assert_eq!(events(&mut cache), [NeighborEvent::Forgotten(ip(2), Some(link(5)), vec![])]);
    let mut cache = self::cache(NeighborConfig { idle_for: None, ..NeighborConfig::default() });
    cache.handle_claim(at(0), claim(2, 5, ClaimKind::Request));
    assert_eq!(cache.poll_timeout(), None, "never");
}

#[test]
fn the_oldest_packets_make_room() {
    let config =
        NeighborConfig { pending_per_entry_max: 2, pending_max: 3, ..NeighborConfig::default() };
    let mut cache = cache(config);
    for (last, packet) in [(1, 10), (1, 11), (1, 12), (2, 20), (2, 21), (3, 30)] {
        assert_eq!(cache.resolve(at(0), ip(last), packet), Resolution::Waits);
    }
    for last in 1..=3 {
        cache.handle_claim(at(0), claim(last, 5, ANSWERED));
    }
    let released = events(&mut cache).into_iter().map(|event| match event {
        NeighborEvent::Resolved(_, _, packets) => packets,
        other => panic!("{other:?}"),
    });
    assert_eq!(released.collect::<Vec<_>>(), [vec![], vec![20, 21], vec![30]]);
    assert_eq!(cache.drops().of(NeighborDrop::PendingPerEntry), 1);
    assert_eq!(cache.drops().of(NeighborDrop::PendingInAll), 2);
}

#[test]
fn a_storm_of_unknown_addresses_is_asked_for_slowly_and_ends() {
    let config = NeighborConfig { broadcasts_per_second_max: 10, ..NeighborConfig::default() };
    let mut cache = cache(config);
    for last in 0..200 {
        cache.resolve(at(0), ip(last), 0);
    }
    assert_eq!(asked(&mut cache).len(), 10);
    let mut now = at(0);
    let mut questions = 0;
    let waits = |cache: &Neighbors<u32>| cache.rows().any(|row| row.state.name() == "incomplete");
    while waits(&cache) {
        now = cache.poll_timeout().unwrap();
        cache.handle_timeout(now);
        questions += asked(&mut cache).len();
    }
    assert!(now <= at(12), "resolution ends, whoever uses up the broadcasts: {now:?}");
    assert!(questions <= 10 * 12, "{questions} broadcasts in 12 s");
    assert!(cache.drops().of(NeighborDrop::BroadcastPutOff) > 0);
}

/// An operation on a cache.
#[derive(Clone, Debug)]
enum Do {
    Resolve(u8),
    Use(u8),
    Claim(u8, u32, ClaimKind),
    Confirm(u8),
    Doubt(u8),
    Configure(u8),
    Remove(u8),
    Wait(u64),
}

fn anything() -> impl Strategy<Value = Do> {
    let kind = prop_oneof![
        Just(ClaimKind::Request),
        any::<(bool, bool)>().prop_map(|(solicited, override_cached)| ClaimKind::Answer {
            solicited,
            override_cached
        }),
    ];
    prop_oneof![
        4 => (0u8..12).prop_map(Do::Resolve),
        1 => (0u8..12).prop_map(Do::Use),
        4 => (0u8..12, 2u32..5, kind).prop_map(|(last, qpn, kind)| Do::Claim(last, qpn, kind)),
        1 => (0u8..12).prop_map(Do::Confirm),
        1 => (0u8..12).prop_map(Do::Doubt),
        1 => (0u8..2).prop_map(Do::Configure),
        1 => (0u8..12).prop_map(Do::Remove),
        3 => (0u64..40).prop_map(Do::Wait),
    ]
}

/// An oracle of the cache: the queued packets and the known addresses, by the events.
#[derive(Default)]
struct Oracle {
    waiting: BTreeMap<IpAddr, Vec<u32>>,
    known: BTreeMap<IpAddr, LinkAddress>,
}

impl Oracle {
    fn hear(&mut self, event: NeighborEvent<u32>) {
        let (ip, address, packets) = match event {
            NeighborEvent::Resolved(ip, address, packets) => (ip, Some(address), packets),
            NeighborEvent::Changed(ip, before, address) => {
                assert_eq!(self.known.get(&ip), Some(&before));
                (ip, Some(address), vec![])
            }
            NeighborEvent::Lost(ip, before) => {
                assert_eq!(self.known.get(&ip), Some(&before));
                (ip, None, vec![])
            }
            NeighborEvent::Unreachable(ip, packets) => (ip, None, packets),
            NeighborEvent::Forgotten(ip, before, packets) => {
                assert_eq!(self.known.get(&ip), before.as_ref());
                (ip, None, packets)
            }
        };
        match address {
            Some(address) => self.known.insert(ip, address),
            None => self.known.remove(&ip),
        };
        if !packets.is_empty() {
            assert_eq!(self.waiting.remove(&ip), Some(packets));
        }
    }
}

/// Checks that the indices match the entries.
fn check_indices(cache: &Neighbors<u32>) {
    let due = cache.entries.iter().filter_map(|(&ip, entry)| Some((entry.state.due()?, ip)));
    assert_eq!(due.collect::<BTreeSet<_>>(), cache.due);
    let learnt = cache.entries.values().filter(|entry| entry.state.name() != "permanent");
    assert_eq!(learnt.count(), cache.order.len());
    let pending: usize = cache.entries.values().map(|entry| entry.pending.len()).sum();
    assert_eq!(pending, cache.pending.len());
    assert!(cache.entries.len() <= cache.config.entries_max);
}

proptest! {
    #[test]
    fn the_cache_agrees_with_its_events(all in proptest::collection::vec(anything(), 0..200)) {
        let config = NeighborConfig { entries_max: 6, ..NeighborConfig::default() };
        let mut cache = cache(config);
        let mut oracle = Oracle::default();
        let mut now = at(0);
        for (packet, one) in (0..).zip(all) {
            match one {
                Do::Resolve(last) => match cache.resolve(now, ip(last), packet) {
                    Resolution::Waits => oracle.waiting.entry(ip(last)).or_default().push(packet),
                    Resolution::Known(address, back) => {
                        prop_assert_eq!(oracle.known.get(&ip(last)), Some(&address));
                        prop_assert_eq!(back, packet);
                    }
                    Resolution::Unreachable(back) => prop_assert_eq!(back, packet),
                },
                Do::Use(last) => cache.handle_use(now, ip(last)),
                Do::Claim(last, qpn, kind) => cache.handle_claim(now, claim(last, qpn, kind)),
                Do::Confirm(last) => cache.handle_confirmation(now, ip(last)),
                Do::Doubt(last) => cache.handle_stale_hint(now, ip(last)),
                Do::Configure(last) => drop(cache.set_permanent(now, ip(last), link(9))),
                Do::Remove(last) => cache.remove(ip(last)),
                Do::Wait(seconds) => {
                    now = now + Duration::from_secs(seconds);
                    cache.handle_timeout(now);
                }
            }
            while let Some(event) = cache.poll_event() {
                oracle.hear(event);
            }
            while cache.poll_transmit().is_some() {}
            check_indices(&cache);
            let told: Vec<_> = oracle.known.iter().map(|(&ip, &address)| (ip, address)).collect();
            let kept = cache.rows().filter_map(|row| Some((row.ip, row.state.address()?)));
            prop_assert_eq!(told, kept.collect::<Vec<_>>());
            prop_assert!(cache.poll_timeout().is_none_or(|due| due > now), "nothing is overdue");
        }
        // All pending packets are returned.
        let end = now + Duration::from_secs(60);
        while let Some(due) = cache.poll_timeout().filter(|due| *due < end) {
            cache.handle_timeout(due);
        }
        while let Some(event) = cache.poll_event() {
            oracle.hear(event);
        }
        prop_assert!(oracle.waiting.is_empty(), "stuck: {:?}", oracle.waiting);
    }
}

#[test]
fn requests_of_unknown_nodes_make_a_limited_number_of_entries_per_second() {
    let config =
        NeighborConfig { unsolicited_entries_per_second_max: 10, ..NeighborConfig::default() };
    let mut cache = cache(config);
    for last in 0..200 {
        cache.handle_claim(at(5), claim(last, last.into(), ClaimKind::Request));
    }
    let put_off = |cache: &Neighbors<u32>| cache.drops().of(NeighborDrop::UnsolicitedPutOff);
    assert_eq!((cache.rows().count(), put_off(&cache)), (10, 190));
    assert_eq!(cache.resolve(at(5), ip(250), 0), Resolution::Waits, "whom we need we find");
    cache.handle_claim(at(5), claim(250, 7, ANSWERED));
    assert!(cache.address(ip(250)).is_some());
    cache.handle_claim(at(6), claim(199, 199, ClaimKind::Request));
    assert!(cache.address(ip(199)).is_some(), "a second later there is room for others");
}
