//! Tests of lifetimes, source selection, next hops and limits.

use super::*;
use crate::nd::RouterAdvertised;
use pollux_wire::address::Guid;
use proptest::prelude::*;

const HOUR: u32 = 3600;

fn at(seconds: u32) -> Time {
    Time::START + Duration::from_secs(u64::from(seconds))
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn identifier() -> InterfaceId {
    InterfaceId::of_port(Guid(0x0002_c903_0000_1001))
}

fn prefix(text: &str, valid: u32, preferred: u32) -> PrefixInformation {
    PrefixInformation {
        prefix_length: 64,
        on_link: true,
        autonomous: true,
        valid_lifetime_seconds: valid,
        preferred_lifetime_seconds: preferred,
        prefix: text.parse().unwrap(),
    }
}

/// Configured addresses that passed duplicate address detection.
fn addresses(all: &[(&str, u8)]) -> Addresses {
    let mut addresses = Addresses::default();
    for &(text, len) in all {
        assert!(addresses.add(at(0), ip(text), len, Origin::Configured, Lifetimes::default()));
        addresses.handle_assigned(at(0), ip(text));
    }
    while addresses.poll_event().is_some() {}
    addresses
}

fn events(addresses: &mut Addresses) -> Vec<AddressEvent> {
    std::iter::from_fn(|| addresses.poll_event()).collect()
}

// req: ud-slaac
#[test]
fn an_address_is_made_of_a_prefix_and_lives_as_long_as_it() {
    let mut addresses = Addresses::default();
    addresses.handle_prefix(at(0), &prefix("2001:db8::", 4 * HOUR, HOUR), identifier());
    let own = ip("2001:db8::202:c903:0:1001");
    assert_eq!(events(&mut addresses), [AddressEvent::Tentative(own)]);
    assert!(!addresses.is_ours(own) && addresses.source_for(ip("2001:db8::1")).is_none());
    addresses.handle_assigned(at(2), own);
    assert_eq!(events(&mut addresses), [AddressEvent::Preferred(own)]);
    assert_eq!(addresses.poll_timeout(), Some(at(HOUR)));
    addresses.handle_timeout(at(HOUR));
    assert_eq!(events(&mut addresses), [AddressEvent::Deprecated(own)]);
    assert!(addresses.is_ours(own), "still");
    addresses.handle_prefix(at(HOUR + 1), &prefix("2001:db8::", 4 * HOUR, HOUR), identifier());
    assert_eq!(events(&mut addresses), [AddressEvent::Preferred(own)]);
    while let Some(due) = addresses.poll_timeout() {
        addresses.handle_timeout(due);
    }
    assert_eq!(events(&mut addresses), [AddressEvent::Deprecated(own), AddressEvent::Removed(own)]);
    assert_eq!(addresses.iter().count(), 0);
}

#[test]
fn an_advertisement_cannot_cut_a_lifetime_below_two_hours() {
    // The lifetime before, the announced one and the resulting one, in seconds (RFC 4862 5.5.3 e).
    let never = u32::MAX;
    for (before, announced, then) in [
        (10 * HOUR, 20 * HOUR, 20 * HOUR),
        (10 * HOUR, 3 * HOUR, 3 * HOUR),
        (10 * HOUR, HOUR, 2 * HOUR),
        (10 * HOUR, 0, 2 * HOUR),
        (HOUR, 0, HOUR),
        (HOUR, HOUR + 1, HOUR + 1),
        (HOUR, never, never),
        (never, 3 * HOUR, 3 * HOUR),
    ] {
        let mut addresses = Addresses::default();
        addresses.handle_prefix(at(0), &prefix("2001:db8::", before, 0), identifier());
        addresses.handle_prefix(at(0), &prefix("2001:db8::", announced, 0), identifier());
        let until = addresses.iter().next().unwrap().valid_until;
        let expected = (then != never).then(|| at(then));
        assert_eq!(until, expected, "{before} then {announced}");
    }
}

#[test]
fn prefixes_of_which_no_address_can_be_made_are_dropped() {
    let mut addresses = Addresses::default();
    let good = prefix("2001:db8::", HOUR, HOUR);
    for bad in [
        PrefixInformation { prefix_length: 63, ..good },
        PrefixInformation { preferred_lifetime_seconds: HOUR + 1, ..good },
        prefix("fe80::", HOUR, HOUR),
        prefix("ff02::", HOUR, HOUR),
    ] {
        addresses.handle_prefix(at(0), &bad, identifier());
    }
    assert_eq!(addresses.drops().of(AddressDrop::BadPrefix), 4);
    addresses.handle_prefix(at(0), &prefix("2001:db8::", 0, 0), identifier());
    let unasked = PrefixInformation { autonomous: false, ..good };
    addresses.handle_prefix(at(0), &unasked, identifier());
    assert_eq!(addresses.iter().count(), 0);
    // A router that announces any number of prefixes.
    for nth in 0..1000 {
        let prefix = prefix(&format!("2001:db8:{nth:x}::"), HOUR, HOUR);
        addresses.handle_prefix(at(0), &prefix, identifier());
    }
    assert_eq!(addresses.iter().count(), AUTOCONFIGURED_MAX);
    assert_eq!(addresses.drops().of(AddressDrop::Full), 1000 - AUTOCONFIGURED_MAX as u64);
}

#[test]
fn a_duplicate_is_not_ours_and_is_listed_until_it_is_unique() {
    let mut addresses = Addresses::default();
    addresses.add(at(0), ip("10.0.0.1"), 24, Origin::Configured, Lifetimes::default());
    addresses.handle_duplicate(at(3), ip("10.0.0.1"), Some("3"));
    let one = *addresses.iter().next().unwrap();
    assert_eq!((one.state, one.since), (AddressState::Duplicate, at(3)));
    assert!(!addresses.is_ours(one.ip));
    assert_eq!(addresses.duplicates().collect::<Vec<_>>(), [(one.ip, Some("3"))]);
    addresses.handle_assigned(at(4), one.ip);
    assert!(addresses.is_ours(one.ip));
    assert_eq!(addresses.duplicates().count(), 0);
}

#[test]
fn the_address_to_send_from_is_chosen_by_rule() {
    let own = [
        ("10.0.0.1", 24),
        ("192.168.7.1", 24),
        ("169.254.1.1", 16),
        ("fe80::1", 64),
        ("fd00::1", 64),
        ("2001:db8:1::1", 64),
        ("2001:db8:2::1", 64),
    ];
    let mut addresses = addresses(&own);
    for (destination, source) in [
        ("10.0.0.9", "10.0.0.1"),
        ("192.168.7.9", "192.168.7.1"),
        ("8.8.8.8", "10.0.0.1"),
        ("169.254.3.3", "169.254.1.1"),
        ("fe80::9", "fe80::1"),
        ("ff02::1", "fe80::1"),
        ("ff0e::1", "2001:db8:1::1"),
        ("2001:db8:2::9", "2001:db8:2::1"),
        ("fd00::9", "fd00::1"),
        ("2a00::1", "2001:db8:1::1"),
        ("fd00::1", "fd00::1"),
    ] {
        assert_eq!(addresses.source_for(ip(destination)), Some(ip(source)), "to {destination}");
    }
    let old = Lifetimes { preferred: Some(Duration::ZERO), valid: None };
    addresses.add(at(1), ip("2001:db8:2::1"), 64, Origin::Configured, old);
    assert_eq!(addresses.source_for(ip("2001:db8:2::9")), Some(ip("2001:db8:1::1")), "deprecated");
    assert!(addresses.is_broadcast(Ipv4Addr::new(10, 0, 0, 255)));
    assert!(!addresses.is_broadcast(Ipv4Addr::new(10, 0, 0, 254)));
}

fn said(last: u16, lifetime: u64, preference: i8) -> RouterAdvertised {
    RouterAdvertised {
        router: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last),
        lifetime: Duration::from_secs(lifetime),
        preference,
        reachable_for: None,
        retry_after: None,
        prefixes: vec![prefix("2001:db8::", 100, 100)],
    }
}

#[test]
fn packets_go_to_the_neighbor_or_to_the_best_router_that_is_there() {
    let mut routes = HostRoutes::default();
    let all = |_: IpAddr| true;
    assert_eq!(routes.next_hop(at(0), ip("2001:db8::1"), all), None);
    routes.handle_router(at(0), &said(1, 1000, 0));
    routes.handle_router(at(0), &said(2, 1000, 1));
    routes.handle_router(at(0), &said(3, 1000, 0));
    let hop = |routes: &HostRoutes, now, to: &str| routes.next_hop(now, ip(to), all);
    let via = |text| Some(NextHop::Via(ip(text)));
    assert_eq!(hop(&routes, at(1), "2001:db8::5"), Some(NextHop::OnLink(ip("2001:db8::5"))));
    assert_eq!(hop(&routes, at(1), "2a00::5"), via("fe80::2"), "preferred");
    let away = |gone: &'static str| move |one: IpAddr| one != ip(gone);
    assert_eq!(routes.next_hop(at(1), ip("2a00::5"), away("fe80::2")), via("fe80::1"));
    assert_eq!(
        routes.next_hop(at(1), ip("2a00::5"), |_| false),
        via("fe80::2"),
        "better than none"
    );
    assert_eq!(hop(&routes, at(1), "8.8.8.8"), None, "another family");
    assert_eq!(hop(&routes, at(1), "ff02::1"), Some(NextHop::Group(ip("ff02::1"))));
    assert_eq!(hop(&routes, at(100), "2001:db8::5"), via("fe80::2"), "the prefix is over");
    routes.handle_not_router("fe80::2".parse().unwrap());
    assert_eq!(hop(&routes, at(101), "2a00::5"), via("fe80::1"));
    routes.handle_router(at(101), &said(1, 0, 0));
    assert_eq!(hop(&routes, at(101), "2a00::5"), via("fe80::3"));
    routes.handle_timeout(at(1000));
    assert_eq!((hop(&routes, at(1000), "2a00::5"), routes.poll_timeout()), (None, None));
    assert!(routes.add_router(ip("10.0.0.254")));
    assert!(routes.set_own([(ip("10.0.0.7"), 24)].into_iter()));
    assert_eq!(hop(&routes, at(1000), "8.8.8.8"), via("10.0.0.254"));
    assert_eq!(hop(&routes, at(1000), "10.0.0.9"), Some(NextHop::OnLink(ip("10.0.0.9"))));
}

#[test]
fn a_prefix_that_a_router_announces_stays_without_an_address_of_ours() {
    let mut routes = HostRoutes::default();
    assert!(routes.set_own([(ip("2001:db8::1"), 64), (ip("10.0.0.1"), 24)].into_iter()));
    let prefixes = vec![prefix("2001:db8::", 100, 100)];
    routes.handle_router(at(0), &RouterAdvertised { prefixes, ..said(1, 1000, 0) });
    assert_eq!(routes.on_link().count(), 3, "each once, and the router");
    assert!(routes.set_own([(ip("10.0.0.1"), 24)].into_iter()));
    assert!(routes.is_on_link(at(99), ip("2001:db8::5")), "the router says so");
    assert!(!routes.is_on_link(at(100), ip("2001:db8::5")));
    assert!(routes.set_own(std::iter::empty()));
    assert!(!routes.is_on_link(at(0), ip("10.0.0.9")), "nobody says so");
    let many = (0..=routes::PREFIXES_MAX as u8).map(|nth| (IpAddr::from([10, 0, nth, 1]), 24));
    assert!(!routes.set_own(many), "one too many");
    assert_eq!(routes.drops().of(RouteDrop::Full), 1);
}

#[test]
fn only_the_next_hop_in_use_redirects() {
    let mut routes = HostRoutes::default();
    let all = |_: IpAddr| true;
    routes.handle_router(at(0), &said(1, 1000, 0));
    let (one, two): (Ipv6Addr, Ipv6Addr) = ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
    let destination: Ipv6Addr = "2a00::5".parse().unwrap();
    routes.handle_redirect(at(0), two, destination, two, all);
    assert_eq!(routes.drops().of(RouteDrop::RedirectNotFromNextHop), 1);
    routes.handle_redirect(at(0), one, destination, two, all);
    assert_eq!(routes.next_hop(at(0), destination.into(), all), Some(NextHop::Via(two.into())));
    let gone = routes.next_hop(at(0), destination.into(), |ip| ip != IpAddr::V6(two));
    assert_eq!(gone, Some(NextHop::Via(one.into())), "not when it is away");
    routes.handle_redirect(at(0), two, destination, destination, all);
    let on_link = NextHop::OnLink(destination.into());
    assert_eq!(routes.next_hop(at(0), destination.into(), all), Some(on_link));
}

proptest! {
    /// For any advertisements, the tables stay within their limits, and all entries expire.
    #[test]
    fn what_routers_say_is_bounded(
        all in proptest::collection::vec(
            (any::<u16>(), any::<u32>(), any::<u32>(), any::<u8>(), any::<u16>()), 0..400,
        ),
    ) {
        let (mut routes, mut addresses) = (HostRoutes::default(), Addresses::default());
        for (nth, valid, preferred, prefix_length, lifetime) in all {
            let prefix = PrefixInformation {
                prefix_length: if prefix_length < 128 { 64 } else { prefix_length },
                ..prefix(&format!("2001:db8:{nth:x}::"), valid, preferred.min(valid))
            };
            addresses.handle_prefix(at(0), &prefix, identifier());
            let said = said(nth, u64::from(lifetime), 0);
            routes.handle_router(at(0), &RouterAdvertised { prefixes: vec![prefix], ..said });
        }
        prop_assert!(addresses.iter().count() <= AUTOCONFIGURED_MAX);
        prop_assert!(routes.routers().count() <= routes::ROUTERS_MAX);
        while let Some(due) = routes.poll_timeout() {
            routes.handle_timeout(due);
        }
        while let Some(due) = addresses.poll_timeout() {
            addresses.handle_timeout(due);
        }
        prop_assert_eq!(routes.routers().count(), 0);
    }
}
