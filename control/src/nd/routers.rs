//! Router solicitations and advertisements (RFC 4861 6.3).

use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::list::List;
use pollux_wire::ip::nd::RouterAdvertisement;
use pollux_wire::ip::nd_option::{NdOption, PrefixInformation};
use std::net::Ipv6Addr;
use std::ops::RangeInclusive;
use std::time::Duration;

const PREFIXES_PER_ADVERTISEMENT_MAX: usize = 16;

const DELAY_MAX: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_secs(4);
const SOLICITATIONS_MAX: u8 = 3;
/// The range of reachable times that are accepted; the maximum is that of RFC 4861 6.2.1.
const REACHABLE_TIME_MS: RangeInclusive<u32> = 1000..=3_600_000;
/// The range of retransmit timers that are accepted. RFC 4861 has no limits; without limits, any
/// node on the link could make us send a thousand solicitations a second, or none at all.
const RETRANS_TIMER_MS: RangeInclusive<u32> = 100..=10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterAdvertised {
    pub router: Ipv6Addr,
    /// The lifetime as a default router; zero if this is not a default router.
    pub lifetime: Duration,
    /// 1 is high, 0 medium, -1 low (RFC 4191 2.1).
    pub preference: i8,
    pub reachable_for: Option<Duration>,
    /// The retransmit timer.
    pub retry_after: Option<Duration>,
    pub prefixes: Vec<PrefixInformation>,
}

impl RouterAdvertised {
    pub(super) fn new(
        router: Ipv6Addr,
        body: &RouterAdvertisement,
        options: &List<'_, NdOption<'_>>,
    ) -> Self {
        let some_ms = |ms: u32, range: RangeInclusive<u32>| {
            let ms = Some(ms).filter(|ms| range.contains(ms));
            ms.map(|ms| Duration::from_millis(u64::from(ms)))
        };
        let prefixes = options.iter().filter_map(|option| match option {
            NdOption::Prefix(prefix) => Some(prefix),
            _ => None,
        });
        Self {
            router,
            lifetime: Duration::from_secs(u64::from(body.router_lifetime_seconds)),
            preference: preference(body.preference),
            reachable_for: some_ms(body.reachable_time_ms, REACHABLE_TIME_MS),
            retry_after: some_ms(body.retrans_timer_ms, RETRANS_TIMER_MS),
            prefixes: prefixes.take(PREFIXES_PER_ADVERTISEMENT_MAX).collect(),
        }
    }
}

/// Decodes the signed two-bit preference; the reserved value counts as medium (RFC 4191 2.2).
const fn preference(code: u8) -> i8 {
    match code {
        1 => 1,
        3 => -1,
        _ => 0,
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Solicitations {
    sent: u8,
    pub(super) until: Time,
}

impl Solicitations {
    /// Begins with a random wait, so that nodes that start together do not send solicitations
    /// together.
    pub(super) fn new(now: Time, rng: &mut SeededRng) -> Self {
        Self { sent: 0, until: now + rng.duration(DELAY_MAX) }
    }

    /// The state after a solicitation; `None` after the last one.
    pub(super) fn next(self, now: Time) -> Option<Self> {
        let sent = self.sent + 1;
        (sent < SOLICITATIONS_MAX).then(|| Self { sent, until: now + INTERVAL })
    }
}
