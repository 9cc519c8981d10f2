//! Forwarding alone: one core forwards packets between two null ports, with a FIB that may be as
//! large as that of the Internet.
//!
//! | work per packet | done by |
//! |---|---|
//! | allocate a buffer, write and parse the headers, give a verdict | the receiving null port |
//! | drop martians, find the longest prefix, update TTL and checksum | the forwarder |
//! | free the buffer | the sending null port |
//!
//! Destinations are drawn from all prefixes, so that lookups miss the processor's caches. With one
//! route, there is one destination by default. The router reads the clock once per breath (one
//! poll of its ports), as a worker does.

use crate::environment::Environment;
use crate::error::PerfError;
use crate::judgement::Estimate;
use crate::machine::run_pinned;
use crate::null_router::{ForwardPlan, NullRouter};
use serde::Serialize;
use std::fmt;

#[derive(Clone, Debug, Serialize)]
pub struct ForwardRow {
    pub plan: ForwardPlan,
    /// Packets per second.
    pub rate: Estimate,
}

#[derive(Clone, Debug, Serialize)]
pub struct ForwardMeasurement {
    pub environment: Environment,
    pub rows: Vec<ForwardRow>,
}

/// Measures each plan `rounds` times; the plans alternate.
pub fn run(plans: Vec<ForwardPlan>, rounds: usize) -> Result<ForwardMeasurement, PerfError> {
    let environment = Environment::now(None);
    let mut rates = vec![Vec::new(); plans.len()];
    for _ in 0..rounds {
        for (plan, rates) in plans.iter().zip(&mut rates) {
            rates.push(rate(plan)?);
        }
    }
    let rows = plans.into_iter().zip(rates);
    let rows =
        rows.map(|(plan, rates)| ForwardRow { plan, rate: Estimate::of_rounds(rates) }).collect();
    Ok(ForwardMeasurement { environment, rows })
}

/// Forwarded packets per second, after a warm-up of a tenth of the duration.
pub fn rate(plan: &ForwardPlan) -> Result<f64, PerfError> {
    run_pinned(plan.core, || {
        let mut router = NullRouter::new(plan)?;
        router.rate_max(plan.duration / 10);
        let rate = router.rate_max(plan.duration);
        router.check_drops().map(|()| rate)
    })
}

impl fmt::Display for ForwardMeasurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.environment)?;
        writeln!(f, "medians (and intervals at 95 %, from six rounds on), one core, null to null")?;
        writeln!(f, "{:>9} routes  {:>6}  {:>24}  {:>10}", "", "bytes", "Mpps", "ns/packet")?;
        for ForwardRow { plan, rate } in &self.rows {
            let nanos = 1e9 / rate.median;
            let rate = rate.scaled(1e-6).to_string();
            let family = if plan.ipv6 { "IPv6" } else { "IPv4" };
            writeln!(
                f,
                "{:>9} {family}    {:>6}  {rate:>24}  {nanos:>10.1}",
                plan.routes, plan.bytes
            )?;
        }
        Ok(())
    }
}
