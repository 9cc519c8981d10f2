//! Timeouts of a connection (IBA 12.7, 9.7.6.1.3).

use pollux_wire::mad::cm::Req;
use pollux_wire::units::TimeCode;
use std::time::Duration;

/// The ACK timeout: the round trip time and the ACK delay of the peer. As it is a power of two, the
/// shorter of the two counts only if it is at least half of the longer.
pub const fn ack_timeout(packet_life_time: TimeCode, ack_delay: TimeCode) -> TimeCode {
    let round_trip = packet_life_time.0.saturating_add(1);
    let delay = ack_delay.0;
    let (longer, shorter) =
        if round_trip >= delay { (round_trip, delay) } else { (delay, round_trip) };
    let code = longer.saturating_add((longer - shorter <= 1) as u8);
    if code > TimeCode::MAX.0 { TimeCode::MAX } else { TimeCode(code) }
}

/// The packet lifetime on the path to the sender of a REQ, derived from the ACK timeout of the REQ.
pub(super) fn packet_life_time(req: &Req) -> TimeCode {
    TimeCode(req.primary.local_ack_timeout.0.saturating_sub(1))
}

pub(super) fn response_time(packet_life_time: TimeCode, response: TimeCode) -> Duration {
    let there_and_back = packet_life_time.nanoseconds().saturating_mul(2);
    Duration::from_nanos(there_and_back.saturating_add(response.nanoseconds()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeouts_are_those_of_linux() {
        let code = |life, delay| ack_timeout(TimeCode(life), TimeCode(delay)).0;
        assert_eq!(code(18, 15), 19);
        assert_eq!(code(18, 18), 20, "nearly as long as the way: both count");
        assert_eq!(code(10, 15), 15);
        assert_eq!(code(13, 15), 16);
        assert_eq!(code(14, 15), 16);
        assert_eq!((code(31, 0), code(63, 31), code(255, 255)), (31, 31, 31));
    }

    #[test]
    fn a_request_is_repeated_after_there_and_back_and_an_answer() {
        let time = response_time(TimeCode(18), TimeCode(20));
        assert_eq!(time.as_millis(), 6442, "twice 1.07 s and 4.29 s");
        assert!(response_time(TimeCode(63), TimeCode(63)) > Duration::from_secs(1 << 30));
    }
}
