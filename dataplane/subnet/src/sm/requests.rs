//! Outstanding requests: a window, with retries (IBA 13.4.6.3).
//!
//! ```text
//! ask       queues a request
//! poll      sends the next request, if the window has space
//! answer    ends the request with this TID, and returns its purpose
//! deadline  queues the request again in front, with a new TID; after the last try, it fails
//! ```

use super::Purpose;
use crate::sma::Mad;
use crate::time::Time;
use crate::view::Path;
use pollux_wire::address::Lid;
use pollux_wire::mad::smp::{DirectedSmp, MKey};
use pollux_wire::mad::{Attribute, AttributeId, MadHeader, Method, MgmtClass};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

#[derive(Clone, Debug)]
pub(super) struct Request {
    path: Path,
    method: Method,
    attribute_id: AttributeId,
    modifier: u32,
    data: [u8; 64],
    m_key: MKey,
    purpose: Purpose,
    tries: u8,
}

impl Request {
    pub(super) fn get<A: Attribute>(path: Path, modifier: u32, purpose: Purpose) -> Self {
        let (method, attribute_id, data, m_key) = (Method::GET, A::ID, [0; 64], MKey(0));
        Self { path, method, attribute_id, modifier, data, m_key, purpose, tries: 0 }
    }

    pub(super) fn set<A: Attribute>(path: Path, modifier: u32, a: A, purpose: Purpose) -> Self {
        let method = Method::SET;
        Self { method, data: a.to_data(), ..Self::get::<A>(path, modifier, purpose) }
    }

    fn emit(&self, transaction_id: u32) -> Mad {
        let class = MgmtClass::SUBN_DIRECTED_ROUTE;
        let header = MadHeader {
            attribute_modifier: self.modifier,
            ..MadHeader::new(class, self.method, transaction_id.into(), self.attribute_id)
        };
        let mut smp = DirectedSmp {
            header,
            m_key: self.m_key,
            dr_slid: Lid::PERMISSIVE,
            dr_dlid: Lid::PERMISSIVE,
            data: self.data,
            ..DirectedSmp::default()
        };
        smp.set_hops(0, self.path.len);
        smp.initial_path[1..].copy_from_slice(&self.path.ports);
        smp.emit()
    }
}

pub(super) struct Requests {
    waiting: VecDeque<Request>,
    sent: BTreeMap<u32, Request>,
    /// Deadlines in order: all requests have the same timeout.
    deadlines: VecDeque<(Time, u32)>,
    of_groups: usize,
    transaction_id: u32,
    window: usize,
    response_time: Duration,
    tries_max: u8,
    m_key: MKey,
}

impl Requests {
    pub(super) fn new(config: &super::SmConfig) -> Self {
        Self {
            waiting: VecDeque::new(),
            sent: BTreeMap::new(),
            deadlines: VecDeque::new(),
            of_groups: 0,
            transaction_id: 0,
            window: config.window_mads.max(1),
            response_time: config.response_time,
            tries_max: config.tries.max(1),
            m_key: config.m_key,
        }
    }

    pub(super) fn ask(&mut self, request: Request) {
        self.ask_with(None, request);
    }

    /// Queues a request with another M_Key than the configured one, if there is one.
    pub(super) fn ask_with(&mut self, m_key: Option<MKey>, request: Request) {
        let m_key = m_key.unwrap_or(self.m_key);
        self.of_groups += usize::from(request.purpose.is_of_groups());
        self.waiting.push_back(Request { m_key, ..request });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.sent.is_empty()
    }

    /// Whether a queued or outstanding request writes groups.
    pub(super) const fn has_groups(&self) -> bool {
        self.of_groups > 0
    }

    fn end(&mut self, purpose: Purpose) -> Purpose {
        self.of_groups -= usize::from(purpose.is_of_groups());
        purpose
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.sent.clear();
        self.deadlines.clear();
        self.of_groups = 0;
    }

    pub(super) fn poll(&mut self, now: Time) -> Option<Mad> {
        if self.sent.len() >= self.window {
            return None;
        }
        let mut request = self.waiting.pop_front()?;
        request.tries += 1;
        self.transaction_id = self.transaction_id.wrapping_add(1).max(1);
        let mad = request.emit(self.transaction_id);
        self.sent.insert(self.transaction_id, request);
        self.deadlines.push_back((now + self.response_time, self.transaction_id));
        Some(mad)
    }

    /// Ends the request of an answer, and returns its purpose and path; `None` if there is no such
    /// request, or if the attribute differs.
    pub(super) fn handle_answer(&mut self, header: &MadHeader) -> Option<(Purpose, Path)> {
        // The upper half of a TID routes responses to agents.
        let id = header.transaction_id as u32;
        let asked = self.sent.get(&id)?;
        let is_answer = asked.attribute_id == header.attribute_id
            && asked.modifier == header.attribute_modifier
            && header.method == Method::GET_RESP;
        if !is_answer {
            return None;
        }
        let Request { purpose, path, .. } = self.sent.remove(&id)?;
        while self.deadlines.front().is_some_and(|(_, id)| !self.sent.contains_key(id)) {
            self.deadlines.pop_front();
        }
        Some((self.end(purpose), path))
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.deadlines.front().map(|(deadline, _)| *deadline)
    }

    /// Ends the next expired request that has no tries left, and returns its purpose. Other expired
    /// requests are queued again, in front.
    pub(super) fn overdue(&mut self, now: Time) -> Option<Purpose> {
        while let Some((_, id)) = self.deadlines.pop_front_if(|(deadline, _)| *deadline <= now) {
            let Some(request) = self.sent.remove(&id) else { continue };
            if request.tries >= self.tries_max {
                return Some(self.end(request.purpose));
            }
            self.waiting.push_front(request);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sm::SmConfig;
    use pollux_wire::mad::smp::NodeInfo;

    fn requests(window_mads: usize) -> Requests {
        Requests::new(&SmConfig { window_mads, tries: 2, ..SmConfig::default() })
    }

    fn ask(requests: &mut Requests, modifier: u32) {
        let path = Path::HERE.extended_by(3).unwrap();
        requests.ask(Request::get::<NodeInfo>(path, modifier, Purpose::Poll));
    }

    fn header_of(mad: &Mad) -> MadHeader {
        let header = DirectedSmp::parse(mad).header;
        MadHeader { method: header.method.response(), ..header }
    }

    #[test]
    fn the_window_limits_outstanding_requests() {
        let mut requests = requests(2);
        (0..3).for_each(|modifier| ask(&mut requests, modifier));
        let sent: Vec<_> = std::iter::from_fn(|| requests.poll(Time::START)).collect();
        assert_eq!(sent.len(), 2);
        let smp = DirectedSmp::parse(&sent[0]);
        assert_eq!((smp.hop_count(), smp.initial_path[1]), (1, 3));
        let other = MadHeader { attribute_modifier: 7, ..header_of(&sent[0]) };
        assert_eq!(requests.handle_answer(&other), None, "for another port");
        let path = Path::HERE.extended_by(3).unwrap();
        assert_eq!(requests.handle_answer(&header_of(&sent[0])), Some((Purpose::Poll, path)));
        assert_eq!(requests.handle_answer(&header_of(&sent[0])), None, "only once");
        assert!(requests.poll(Time::START).is_some() && requests.poll(Time::START).is_none());
    }

    #[test]
    fn an_unanswered_request_is_retried_and_then_fails() {
        let mut requests = requests(2);
        ask(&mut requests, 0);
        let first = requests.poll(Time::START).unwrap();
        let due = requests.due().unwrap();
        assert_eq!(due, Time::START + SmConfig::default().response_time);
        assert_eq!(requests.overdue(due), None);
        let again = requests.poll(due).unwrap();
        assert_eq!(requests.handle_answer(&header_of(&first)), None, "too late");
        assert_ne!(header_of(&first).transaction_id, header_of(&again).transaction_id);
        assert_eq!(requests.overdue(requests.due().unwrap()), Some(Purpose::Poll));
        assert!(requests.is_empty() && requests.due().is_none());
    }

    #[test]
    fn a_path_has_a_maximum_of_hops() {
        let path = (0..63).try_fold(Path::HERE, |path, _| path.extended_by(1)).unwrap();
        assert_eq!((path.len, path.extended_by(1)), (63, None));
    }
}
