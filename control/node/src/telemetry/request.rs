//! The head of an HTTP request (RFC 9112 3), as far as a listener for metrics needs it: the method,
//! the target, and the formats that the client accepts.

use super::exposition::MetricsFormat;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestError {
    Malformed,
    NotFound,
    Method,
    TooLong,
}

impl RequestError {
    /// The status line of the reply, without the version, and its text.
    pub(super) const fn reply(self) -> (&'static str, &'static str) {
        match self {
            Self::Malformed => ("400 Bad Request", "this is no HTTP request\n"),
            Self::NotFound => ("404 Not Found", "the metrics are at /metrics\n"),
            Self::Method => ("405 Method Not Allowed", "only GET is allowed\n"),
            Self::TooLong => ("431 Request Header Fields Too Large", "the request is too long\n"),
        }
    }
}

/// The format for a request; `None` if the head is not complete.
pub(super) fn read_request(bytes: &[u8]) -> Option<Result<MetricsFormat, RequestError>> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|end| &bytes[..end])?;
    Some(std::str::from_utf8(head).map_err(|_| RequestError::Malformed).and_then(read_head))
}

fn read_head(head: &str) -> Result<MetricsFormat, RequestError> {
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let [method, target, version] = [(); 3].map(|()| words.next().unwrap_or_default());
    if !version.starts_with("HTTP/1.") || words.next().is_some() || method.is_empty() {
        return Err(RequestError::Malformed);
    }
    if method != "GET" {
        return Err(RequestError::Method);
    }
    if target.split('?').next() != Some("/metrics") {
        return Err(RequestError::NotFound);
    }
    let mut format = MetricsFormat::Text;
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(RequestError::Malformed)?;
        if name.eq_ignore_ascii_case("accept") && accepts_openmetrics(value) {
            format = MetricsFormat::OpenMetrics;
        }
    }
    Ok(format)
}

/// Whether a value of `Accept` has the media type of OpenMetrics, and does not exclude it.
fn accepts_openmetrics(value: &str) -> bool {
    value.split(',').any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_type = parts.next() == Some("application/openmetrics-text");
        is_type && !parts.any(|parameter| matches!(parameter, "q=0" | "q=0.0"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(head: &str) -> Option<Result<MetricsFormat, RequestError>> {
        read_request(head.as_bytes())
    }

    #[test]
    fn requests_get_the_format_that_they_accept() {
        let get = "GET /metrics HTTP/1.1\r\nHost: x\r\n";
        let prometheus = "Accept: application/openmetrics-text;version=1.0.0;q=0.75,text/plain;\
                          version=0.0.4;q=0.5,*/*;q=0.1\r\n";
        let accepts = |header: &str| read(&format!("{get}{header}\r\n"));
        assert_eq!(accepts(prometheus), Some(Ok(MetricsFormat::OpenMetrics)));
        assert_eq!(accepts(""), Some(Ok(MetricsFormat::Text)));
        assert_eq!(accepts("ACCEPT: text/html, */*\r\n"), Some(Ok(MetricsFormat::Text)));
        let excluded = "accept: application/openmetrics-text;q=0, text/plain\r\n";
        assert_eq!(accepts(excluded), Some(Ok(MetricsFormat::Text)));
        let query = "GET /metrics?x=1 HTTP/1.0\r\n\r\n";
        assert_eq!(read(query), Some(Ok(MetricsFormat::Text)));
    }

    #[test]
    fn other_requests_get_the_reason() {
        for (head, error) in [
            ("POST /metrics HTTP/1.1\r\n\r\n", RequestError::Method),
            ("GET / HTTP/1.1\r\n\r\n", RequestError::NotFound),
            ("GET /metricsx HTTP/1.1\r\n\r\n", RequestError::NotFound),
            ("GET /metrics\r\n\r\n", RequestError::Malformed),
            ("GET /metrics HTTP/2.0\r\n\r\n", RequestError::Malformed),
            ("GET  /metrics HTTP/1.1\r\n\r\n", RequestError::Malformed),
            ("GET /metrics HTTP/1.1\r\nno header\r\n\r\n", RequestError::Malformed),
            ("\r\n\r\n", RequestError::Malformed),
        ] {
            assert_eq!(read(head), Some(Err(error)), "{head:?}");
        }
        assert_eq!(read_request(b"\xff\xfe\r\n\r\n"), Some(Err(RequestError::Malformed)));
        assert_eq!(read("GET /metrics HTTP/1.1\r\nAccept: x\r\n"), None);
    }
}
