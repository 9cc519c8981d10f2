//! Replies to requests about interfaces, from the state of their control planes.

use super::ipoib_rows::{connections, groups};
use super::kinds::NodeInterface;
use super::opening::ConfiguredInterface;
use super::worker_handle::Assignment;
use crate::admin::CONNECTIONS_MAX;
use crate::admin::page::{Cursor, PAGE_ROWS, Page, RowKey};
use crate::admin::reply::{AdminAnswer, AdminReply, PingOutcome};
use crate::admin::request::{AdminRequest, AdminTable};
use crate::admin::rows::InterfaceStatus;
use crate::interface::echo::{EchoId, EchoOutcome, EchoRequest};
use crate::interface::{NotSent, PingError};
use pollux_control::address::AddressState;
use pollux_verbs::time::Time;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;
use std::time::Duration;

/// Timeout of an echo request, shorter than the timeout of the response to the client.
const ECHO_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum number of pending echo requests: one for each connection of the admin socket.
const PINGS_MAX: usize = CONNECTIONS_MAX;

pub(super) type Response = AdminReply<AdminAnswer>;

/// Pending echo requests and their interfaces, by request number.
pub(super) type Pings = BTreeMap<u64, (String, EchoId)>;

pub(super) struct Report<'a> {
    pub(super) interfaces: &'a mut BTreeMap<String, ConfiguredInterface>,
    pub(super) pings: &'a mut Pings,
    pub(super) assignment: &'a Assignment,
}

impl Report<'_> {
    /// Responds to a request; `None` if there is no response yet. A cursor asks for the page that
    /// begins there.
    pub(super) fn respond(
        &mut self,
        now: Time,
        number: u64,
        request: &AdminRequest,
        from: Option<&Cursor>,
    ) -> Option<Page> {
        if self.interfaces.is_empty() {
            let why = "the node has no interface; add [interface.ib0] to its configuration";
            return Some(Response::Error(why.into()).into());
        }
        let threads = self.assignment;
        Some(match request {
            AdminRequest::Show(AdminTable::Interfaces) => self.interfaces(now, from),
            AdminRequest::Show(AdminTable::Neighbors) => {
                self.page(from, AdminAnswer::Neighbors, |name, one, after| {
                    one.neighbors(now, name, after)
                })
            }
            AdminRequest::Show(AdminTable::Connections) => {
                self.page(from, AdminAnswer::Connections, |name, one, after| {
                    let thread = |worker| threads.thread(name, worker);
                    let rows = |one| connections(now, name, one, &thread, after);
                    one.ipoib().map(rows).unwrap_or_default()
                })
            }
            AdminRequest::Show(AdminTable::Groups) => {
                self.page(from, AdminAnswer::Groups, |name, one, _| {
                    (one.ipoib().map(|one| groups(now, name, one)).unwrap_or_default(), None)
                })
            }
            AdminRequest::Show(AdminTable::Drops) => {
                self.page(from, AdminAnswer::Drops, |name, one, _| (one.drops(name), None))
            }
            AdminRequest::Ping { address, bytes, ttl, interface } => {
                let request = EchoRequest::new(*address, *bytes, ECHO_TIMEOUT);
                let request = EchoRequest { ttl: ttl.unwrap_or(request.ttl), ..request };
                let ping = self.ping(now, number, request, interface.as_deref());
                return ping.map(Page::from);
            }
            _ => {
                let why = "a node does not have this; `pollux help show` lists what nodes, \
                           fabrics and programs with sockets have";
                Response::Error(why.into()).into()
            }
        })
    }

    /// A page of interfaces, from the cursor on.
    fn interfaces(&self, now: Time, from: Option<&Cursor>) -> Page {
        let mut rest = self.from(from);
        let rows = rest.by_ref().take(PAGE_ROWS).map(|(name, named)| match &named.interface {
            Ok(one) => InterfaceStatus {
                domain: named.settings.domain.clone(),
                ..one.status(now, name, &named.settings.device)
            },
            Err(outage) => InterfaceStatus {
                interface: name.clone(),
                device: named.settings.device.clone(),
                domain: named.settings.domain.clone(),
                state: outage.state().into(),
                why: outage.to_string(),
                waits_for: Some("the device".into()),
                ..InterfaceStatus::default()
            },
        });
        let reply = AdminReply::Ok(AdminAnswer::Interfaces(rows.collect()));
        let next = rest.next().map(|(name, _)| Cursor { interface: name.clone(), after: None });
        Page { reply, next }
    }

    fn from(&self, from: Option<&Cursor>) -> impl Iterator<Item = (&String, &ConfiguredInterface)> {
        let first = from.map_or("", |from| &from.interface);
        self.interfaces.range::<str, _>((Bound::Included(first), Bound::Unbounded))
    }

    /// A page of the rows of running interfaces, from the cursor on.
    fn page<R>(
        &self,
        from: Option<&Cursor>,
        answer: fn(Vec<R>) -> AdminAnswer,
        of: impl Fn(&str, &NodeInterface, Option<RowKey>) -> (Vec<R>, Option<RowKey>),
    ) -> Page {
        let (mut rows, mut next) = (Vec::new(), None);
        for (name, named) in self.from(from) {
            let Ok(one) = &named.interface else { continue };
            let interface = name.clone();
            if rows.len() >= PAGE_ROWS {
                next = Some(Cursor { interface, after: None });
                break;
            }
            let after = from.filter(|from| from.interface == interface).and_then(|it| it.after);
            let (more, last) = of(name, one, after);
            rows.extend(more);
            if last.is_some() {
                next = Some(Cursor { interface, after: last });
                break;
            }
        }
        Page { reply: AdminReply::Ok(answer(rows)), next }
    }

    /// Sends an echo request at the first call. Later calls return its outcome, once there is one.
    fn ping(
        &mut self,
        now: Time,
        number: u64,
        request: EchoRequest,
        from: Option<&str>,
    ) -> Option<Response> {
        if let Some((name, id)) = self.pings.get(&number) {
            let interface = self.interfaces.get_mut(name)?.interface.as_mut();
            let outcome =
                interface.map_or(Some((EchoOutcome::Silence, None)), |one| one.echo(*id))?;
            self.pings.remove(&number);
            return Some(AdminReply::Ok(AdminAnswer::Ping(echo(outcome))));
        }
        match self.begin(now, request, from) {
            Ok(ping) => {
                if self.pings.len() == PINGS_MAX {
                    self.pings.pop_first();
                }
                self.pings.insert(number, ping);
                None
            }
            Err(response) => Some(response),
        }
    }

    fn begin(
        &mut self,
        now: Time,
        request: EchoRequest,
        from: Option<&str>,
    ) -> Result<(String, EchoId), Response> {
        let EchoRequest { to, bytes, .. } = request;
        let (no, later) = (Response::Error, Response::Later);
        let leads_there =
            |(name, named): &(&String, &mut ConfiguredInterface)| match (from, &named.interface) {
                (Some(from), _) => from == name.as_str(),
                (None, Ok(one)) => one.leads_to(now, to),
                (None, Err(_)) => named.may_lead_to(to),
            };
        let may_come = self.interfaces.values().any(ConfiguredInterface::is_coming_up);
        let found = self.interfaces.iter_mut().find(leads_there);
        let (name, named) = found.ok_or_else(|| match (from, may_come) {
            (Some(from), _) => no(no_interface(from)),
            (None, true) => later(format!("no interface that is up has a route to {to}")),
            (None, false) => {
                no(format!("no interface has a route to {to}; see `pollux show interfaces`"))
            }
        })?;
        let (state, asks) = (named.state(), named.settings.uses_dhcp());
        let interface = named.interface.as_mut();
        let interface = interface.map_err(|_| later(format!("{name} is {state}")))?;
        let is_probed = interface
            .addresses()
            .iter()
            .any(|one| one.state == AddressState::Tentative && one.ip.is_ipv4() == to.is_ipv4());
        let id = interface.ping(now, request).map_err(|error| match error {
            PingError::Down => later(format!("{name} is {state}")),
            PingError::NoSource => {
                let why = format!("{name} has no source address for {to}");
                // DHCP or duplicate address detection may still provide an address.
                if asks || is_probed { later(why) } else { no(why) }
            }
            PingError::TooMany => later("too many echo requests are pending".into()),
            PingError::TooLong => {
                no(format!("{bytes} data bytes do not fit an IP packet; send fewer"))
            }
        })?;
        Ok((name.clone(), id))
    }
}

/// The error of a request about an interface that the node does not have.
pub(super) fn no_interface(name: &str) -> String {
    format!("there is no interface {name}; list them with `pollux show interfaces`")
}

fn echo((outcome, from): (EchoOutcome, Option<IpAddr>)) -> PingOutcome {
    let lost = |why: String| PingOutcome::Lost { lost: why, from };
    match outcome {
        EchoOutcome::Answered { bytes, hop_limit: ttl, after } => {
            PingOutcome::Answered { bytes, ttl, us: after.as_nanos() as f64 / 1e3 }
        }
        EchoOutcome::Silence => lost("no answer".into()),
        EchoOutcome::NotSent(NotSent::TooBig(mtu)) => lost(format!("message too long, mtu={mtu}")),
        EchoOutcome::NotSent(NotSent::Full) => lost("no buffer space available".into()),
        EchoOutcome::NotSent(_) | EchoOutcome::Unreachable => {
            lost("destination host unreachable".into())
        }
        EchoOutcome::Prohibited => lost("packet filtered".into()),
        EchoOutcome::TimeExceeded => lost("time to live exceeded".into()),
    }
}
