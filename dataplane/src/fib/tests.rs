//! Tests of the FIB against two oracles, a list of all routes and a different trie, and of the
//! shares of flows.

use super::groups::PublishedGroup;
use super::*;
use crate::port::PortId;
use pollux_mem::snapshot::Publisher;
use pollux_verbs::rng::SeededRng;
use prefix_trie::PrefixMap;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};

const ROUTES_MAX: usize = 1_000_000;

/// A prefix: its family, its bits in the high end, and its length.
type TestPrefix = (bool, u128, u8);

fn address(is_v4: bool, bits: u128) -> IpAddr {
    if is_v4 {
        Ipv4Addr::from_bits((bits >> 96) as u32).into()
    } else {
        Ipv6Addr::from_bits(bits).into()
    }
}

fn network(bits: u128, len: u8) -> u128 {
    bits & !u128::MAX.checked_shr(len.into()).unwrap_or(0)
}

fn hop(port: u16) -> FibHop {
    FibHop { port: PortId(port), gateway: None, weight: 1 }
}

fn route(port: u16) -> RouteTo {
    RouteTo::Port { port: PortId(port), gateway: None }
}

/// The longest prefix of an address, by a search of all prefixes.
fn slow<T: Copy>(routes: &BTreeMap<TestPrefix, T>, is_v4: bool, bits: u128) -> Option<T> {
    let is_in = |(family, ip, len): &TestPrefix| *family == is_v4 && *ip == network(bits, *len);
    let all = routes.iter().filter(|(prefix, _)| is_in(prefix));
    all.max_by_key(|((.., len), _)| *len).map(|(_, route)| *route)
}

/// Checks that look-ups find these routes, one by one and in batches of all lengths.
fn assert_finds(fib: &Fib, expected: &[(IpAddr, RouteTo)]) {
    for (ip, route) in expected {
        assert_eq!(fib.look_up(*ip, || 0), route, "{ip}");
    }
    let (mut left, mut len) = (expected, 0);
    while !left.is_empty() {
        len = (len % LOOK_UPS_MAX + 1).min(left.len());
        let (batch, rest) = left.split_at(len);
        let (ips, routes): (Vec<IpAddr>, Vec<&RouteTo>) =
            batch.iter().map(|(ip, to)| (*ip, to)).unzip();
        let mut found = [&RouteTo::Domain(DomainId(7)); LOOK_UPS_MAX];
        fib.look_up_all(&ips, |_| 0, &mut found);
        assert_eq!(found[..len], routes, "{ips:?}");
        left = rest;
    }
}

/// An address with a few bits that vary, around the ends of chunks and nodes, so that prefixes
/// nest.
fn random_bits(rng: &mut SeededRng, is_v4: bool) -> u128 {
    let base: u128 = if is_v4 { 0x0a << 120 } else { 0x2001_0db8 << 96 };
    let ends: &[u32] =
        if is_v4 { &[0, 8, 11, 17, 23, 31] } else { &[0, 11, 23, 31, 47, 63, 64, 126, 127] };
    let vary = |bits, end: &u32| bits ^ u128::from(rng.below(2) as u32) << (127 - end);
    ends.iter().fold(base, vary)
}

fn random_prefix(rng: &mut SeededRng) -> TestPrefix {
    let is_v4 = rng.below(2) == 0;
    let lengths: &[u8] = if is_v4 {
        &[0, 1, 8, 9, 11, 12, 13, 18, 19, 24, 25, 30, 31, 32]
    } else {
        &[0, 1, 12, 13, 18, 19, 24, 32, 36, 37, 48, 49, 60, 64, 65, 127, 128]
    };
    let len = lengths[rng.below(lengths.len() as u64) as usize];
    (is_v4, network(random_bits(rng, is_v4), len), len)
}

fn random_target(rng: &mut SeededRng, groups: &[FibGroup]) -> (FibTarget, RouteTo) {
    let nth = rng.below(groups.len() as u64 + 3) as usize;
    match nth.checked_sub(groups.len()) {
        None => (FibTarget::Group(groups[nth]), route(nth as u16)),
        Some(0) => (FibTarget::Blackhole, RouteTo::Blackhole),
        Some(1) => (FibTarget::Unreachable, RouteTo::Unreachable),
        Some(_) => (FibTarget::Prohibited, RouteTo::Prohibited),
    }
}

#[test]
fn the_longest_prefix_counts_after_any_changes() {
    let mut rng = SeededRng::new(5);
    for _ in 0..30 {
        let mut fib = FibBuilder::new(ROUTES_MAX);
        let groups: Vec<_> = (0..20).map(|port| fib.add_group(&[hop(port)])).collect();
        let mut routes = BTreeMap::new();
        let mut versions = Vec::new();
        for _ in 0..40 {
            for _ in 0..rng.below(8) {
                let (is_v4, bits, len) = random_prefix(&mut rng);
                let ip = address(is_v4, bits);
                if rng.below(3) > 0 {
                    let (target, route) = random_target(&mut rng, &groups);
                    fib.insert(ip, len, target).unwrap();
                    routes.insert((is_v4, bits, len), route);
                } else {
                    let known = routes.remove(&(is_v4, bits, len)).is_some();
                    assert_eq!(fib.remove(ip, len), known);
                }
                assert_eq!(fib.routes(), routes.len());
            }
            versions.push((fib.publish(), routes.clone()));
        }
        // Earlier versions are unchanged.
        for (version, routes) in versions {
            let expected: Vec<_> = (0..60)
                .map(|_| {
                    let is_v4 = rng.below(2) == 0;
                    let bits = random_bits(&mut rng, is_v4);
                    let route = slow(&routes, is_v4, bits).unwrap_or(RouteTo::Nowhere);
                    (address(is_v4, bits), route)
                })
                .collect();
            assert_finds(&version, &expected);
        }
    }
}

/// Many routes of all lengths, in a few networks. Each address is near the edge of a prefix.
#[test]
fn a_trie_of_another_kind_finds_the_same() {
    const GROUPS: u16 = 500;
    let mut rng = SeededRng::new(6);
    let mut fib = FibBuilder::new(ROUTES_MAX);
    let groups: Vec<_> = (0..GROUPS).map(|port| fib.add_group(&[hop(port)])).collect();
    let mut v4: PrefixMap<(u32, u8), u16> = PrefixMap::new();
    let mut v6: PrefixMap<(u128, u8), u16> = PrefixMap::new();
    let mut known: Vec<TestPrefix> = Vec::new();
    for nth in 0..60_000 {
        // The number of routes grows, then shrinks.
        let is_removed = rng.below(60_000) < nth;
        let random = u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
        let (is_v4, bits, len) = match known.get(rng.below(2 * known.len() as u64) as usize) {
            Some(known) if is_removed => *known,
            // In a prefix that exists.
            Some((is_v4, bits, len)) => {
                let below = bits | random.checked_shr((*len).into()).unwrap_or(0);
                (
                    *is_v4,
                    below,
                    len + rng.below(if *is_v4 { 33 } else { 129 } - u64::from(*len)) as u8,
                )
            }
            // In one of four networks, to some depth.
            None => match rng.below(2) {
                0 => (true, random >> 14 | 0x0a << 120, 12 + rng.below(21) as u8),
                _ => (false, random >> 26 | 0xfd << 120, 20 + rng.below(50) as u8),
            },
        };
        let (bits, port) = (network(bits, len), rng.below(GROUPS.into()) as u16);
        let (ip, v4_bits) = (address(is_v4, bits), (bits >> 96) as u32);
        if is_removed {
            fib.remove(ip, len);
            match is_v4 {
                true => v4.remove(&(v4_bits, len)),
                false => v6.remove(&(bits, len)),
            };
        } else {
            fib.insert(ip, len, FibTarget::Group(groups[usize::from(port)])).unwrap();
            match is_v4 {
                true => v4.insert((v4_bits, len), port),
                false => v6.insert((bits, len), port),
            };
            known.push((is_v4, bits, len));
        }
        if nth % 200 == 0 {
            // The next version shares with this one.
            fib.publish();
        }
        if nth % 20_000 != 19_999 {
            continue;
        }
        assert_eq!(fib.routes(), v4.len() + v6.len());
        let version = fib.publish();
        let mut all = Vec::new();
        for (is_v4, bits, len) in &known {
            let last = bits | u128::MAX.checked_shr((*len).into()).unwrap_or(0);
            for bits in [*bits, last, bits.wrapping_sub(1), last.wrapping_add(1)] {
                let longest = match is_v4 {
                    true => v4.get_lpm(&((bits >> 96) as u32, 32)).map(|(_, port)| *port),
                    false => v6.get_lpm(&(bits, 128)).map(|(_, port)| *port),
                };
                let expected = longest.map_or(RouteTo::Nowhere, route);
                all.push((address(*is_v4, bits), expected));
            }
        }
        assert_finds(&version, &all);
    }
    assert!(fib.routes() > 5_000);
}

#[test]
fn a_change_of_a_group_leaves_the_trie_alone() {
    let mut fib = FibBuilder::new(ROUTES_MAX);
    let group = fib.add_group(&[hop(1)]);
    let to: IpAddr = "192.0.2.1".parse().unwrap();
    for len in [0, 8, 12, 24, 32] {
        fib.insert(to, len, FibTarget::Group(group)).unwrap();
    }
    let mut publisher = Publisher::new(fib.publish());
    let mut reader = publisher.reader();
    assert_eq!(*reader.refresh().look_up(to, || 0), route(1));
    fib.set_group(group, &[hop(2)]);
    let version = fib.publish();
    assert!(version.v4.shares_root(&reader.refresh().v4));
    publisher.publish(version);
    assert_eq!(*reader.refresh().look_up(to, || 0), route(2));
    assert!(!fib.remove_group(group), "routes use it");
    fib.set_group(group, &[]);
    publisher.publish(fib.publish());
    assert_eq!(*reader.refresh().look_up(to, || 0), RouteTo::Unreachable);
    for len in [0, 8, 12, 24, 32] {
        assert!(fib.remove(to, len));
    }
    assert!(fib.remove_group(group));
    publisher.publish(fib.publish());
    assert_eq!(*reader.refresh().look_up(to, || 0), RouteTo::Nowhere);
    assert_eq!(fib.add_group(&[hop(3)]), group, "its index is used again");
}

#[test]
fn a_full_fib_refuses_further_routes() {
    let mut fib = FibBuilder::new(2);
    let ip = |last| IpAddr::from([192, 0, 2, last]);
    assert_eq!(fib.insert(ip(1), 32, FibTarget::Blackhole), Ok(()));
    assert_eq!(fib.insert(ip(2), 32, FibTarget::Blackhole), Ok(()));
    assert_eq!(fib.insert(ip(3), 32, FibTarget::Blackhole), Err(FibFull));
    assert_eq!(fib.insert(ip(2), 32, FibTarget::Prohibited), Ok(()), "it replaces");
    assert_eq!(*fib.publish().look_up(ip(2), || 0), RouteTo::Prohibited);
    assert_eq!(*fib.publish().look_up(ip(3), || 0), RouteTo::Nowhere);
    assert!(fib.remove(ip(1), 32));
    assert_eq!(fib.insert(ip(3), 32, FibTarget::Blackhole), Ok(()));
}

#[test]
fn a_batch_has_a_flow_for_each_packet() {
    let mut fib = FibBuilder::new(ROUTES_MAX);
    let group = fib.add_group(&[hop(1), hop(2), hop(3)]);
    fib.insert("192.0.2.0".parse().unwrap(), 24, FibTarget::Group(group)).unwrap();
    fib.insert("2001:db8::".parse().unwrap(), 32, FibTarget::Group(group)).unwrap();
    let version = fib.publish();
    let ips: Vec<IpAddr> = (0..LOOK_UPS_MAX as u8)
        .map(|nth| match nth % 3 {
            0 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, nth.into()).into(),
            _ => Ipv4Addr::new(192, 0, 2, nth).into(),
        })
        .collect();
    let flow = |nth: usize| (nth as u32).wrapping_mul(0x9e37_79b9) >> 16;
    let mut found = [&RouteTo::Nowhere; LOOK_UPS_MAX];
    version.look_up_all(&ips, flow, &mut found);
    for (nth, (ip, found)) in ips.iter().zip(found).enumerate() {
        assert_eq!(found, version.look_up(*ip, || flow(nth)), "{ip}");
    }
    let used: BTreeSet<_> = found.iter().map(|route| format!("{route:?}")).collect();
    assert_eq!(used.len(), 3);
}

/// The ports of all slots. No group has more than this many.
fn slots(group: &PublishedGroup) -> Vec<u16> {
    let slot = |flow| match group.route(|| flow) {
        RouteTo::Port { port, .. } => port.0,
        other => panic!("{other:?}"),
    };
    (0..1024).map(slot).collect()
}

fn published(fib: &mut FibBuilder, group: FibGroup) -> PublishedGroup {
    fib.publish().groups[FibTarget::Group(group).leaf() as usize].clone()
}

fn weighted(weights: &BTreeMap<u16, u16>) -> Vec<FibHop> {
    weights.iter().map(|(port, weight)| FibHop { weight: *weight, ..hop(*port) }).collect()
}

#[test]
fn flows_are_shared_by_weight() {
    let mut fib = FibBuilder::new(ROUTES_MAX);
    let cases: [(&[u16], &[usize]); 6] = [
        (&[1, 1], &[512, 512]),
        (&[1, 3], &[256, 768]),
        // Of 64, 128 and 32 slots, as even as these can be.
        (&[1, 1, 1], &[336, 336, 352]),
        (&[0, 1, 2, 3], &[144, 144, 288, 448]),
        (&[1, 255], &[4, 1020]),
        (&[1, 60_000], &[1, 1023]),
    ];
    for (weights, expected) in cases {
        let hops = weights.iter().enumerate().map(|(at, weight)| (at as u16, *weight)).collect();
        let group = fib.add_group(&weighted(&hops));
        let slots = slots(&published(&mut fib, group));
        let count = |port| slots.iter().filter(|slot| **slot == port).count();
        let mut counts: Vec<_> = (0..weights.len() as u16).map(count).collect();
        counts.sort_unstable();
        assert_eq!(counts, expected, "{weights:?}");
    }
    // A hop that is listed twice has both weights; at most GROUP_MEMBERS_MAX hops have slots.
    let group = fib.add_group(&[hop(1), hop(2), hop(1), hop(1)]);
    let named = slots(&published(&mut fib, group));
    assert_eq!(named.iter().filter(|port| **port == 1).count(), 768);
    let all: Vec<_> = (0..300).map(hop).collect();
    let group = fib.add_group(&all);
    let used: BTreeSet<_> = slots(&published(&mut fib, group)).into_iter().collect();
    assert_eq!(used.len(), GROUP_MEMBERS_MAX);
}

/// Random members are removed and added. All exist at first, so the table has its final size.
#[test]
fn the_loss_of_a_member_moves_only_its_flows() {
    let mut rng = SeededRng::new(7);
    for _ in 0..40 {
        let mut fib = FibBuilder::new(ROUTES_MAX);
        let mut weights: BTreeMap<u16, u16> =
            (0..14).map(|port| (port, rng.below(16) as u16)).collect();
        let group = fib.add_group(&weighted(&weights));
        let mut before = slots(&published(&mut fib, group));
        for _ in 0..20 {
            let port = rng.below(14) as u16;
            let lost = weights.remove(&port);
            if lost.is_none() {
                weights.insert(port, rng.below(16) as u16);
            }
            if weights.len() < 2 {
                break;
            }
            fib.set_group(group, &weighted(&weights));
            let after = slots(&published(&mut fib, group));
            let mut changes = before.iter().zip(&after).filter(|(before, after)| before != after);
            match lost {
                Some(_) => assert!(changes.all(|(before, _)| *before == port), "{weights:?}"),
                None => assert!(changes.all(|(_, after)| *after == port), "{weights:?}"),
            }
            let used: BTreeSet<_> = after.iter().copied().collect();
            assert!(used.iter().eq(weights.keys()), "each has a slot");
            before = after;
        }
    }
}
