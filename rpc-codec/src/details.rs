//! The typed details at the end of a RESPONSE's head.
//!
//! Each is `type u16 | len u16 | value`: 0 a type URL (`len u16`, bytes) and bytes of the user's
//! own, 1 ErrorInfo, 2 RetryInfo. Their encoding is this protocol's and never the call's codec.

use std::{borrow::Cow, time::Duration};

use rpc_core::{AnyDetail, ErrorInfo, Metadata, Refusal, Status};

use crate::error::HeadError;

const ANY: u16 = 0;
const ERROR_INFO: u16 = 1;
const RETRY_INFO: u16 = 2;

#[derive(Debug, Default)]
pub(crate) struct Details {
    pub(crate) error_info: Option<ErrorInfo>,
    pub(crate) retry_delay: Option<Duration>,
    pub(crate) other: Vec<AnyDetail>,
}

/// A field, or a count of them, is more than its length on the wire can say.
#[derive(Debug)]
pub(crate) struct FieldTooLong {
    pub(crate) len: usize,
    pub(crate) max: usize,
}

impl FieldTooLong {
    /// `len` as the type `T` that it has on the wire, which goes up to `max`.
    pub(crate) fn check<T: TryFrom<usize>>(len: usize, max: usize) -> Result<T, Self> {
        T::try_from(len).map_err(|_| Self { len, max })
    }
}

/// Appends the details of `status`.
pub(crate) fn encode(out: &mut Vec<u8>, status: &Status) -> Result<(), FieldTooLong> {
    let info = status.error_info();
    let count = usize::from(info.is_some()) + usize::from(status.retry_delay().is_some()) + status.details().len();
    out.push(FieldTooLong::check(count, u8::MAX.into())?);
    if let Some(info) = info {
        write_detail(out, ERROR_INFO, |out| {
            write_short(out, &info.reason)?;
            write_short(out, &info.domain)?;
            info.metadata.encode(out);
            Ok(())
        })?;
    }
    if let Some(delay) = status.retry_delay() {
        write_retry_info(out, delay)?;
    }
    status.details().iter().try_for_each(|detail| {
        write_detail(out, ANY, |out| {
            let url_len: u16 = FieldTooLong::check(detail.type_url.len(), u16::MAX.into())?;
            out.extend_from_slice(&url_len.to_be_bytes());
            out.extend_from_slice(detail.type_url.as_bytes());
            out.extend_from_slice(&detail.value);
            Ok(())
        })
    })
}

/// Appends the details of a refusal: the same bytes as for its status, without building one.
pub(crate) fn encode_refusal(out: &mut Vec<u8>, refusal: &Refusal) -> Result<(), FieldTooLong> {
    out.push(1 + u8::from(refusal.retry_delay().is_some()));
    write_detail(out, ERROR_INFO, |out| {
        write_short(out, refusal.reason().name())?;
        write_short(out, ErrorInfo::DOMAIN)?;
        let count_at = out.len();
        out.push(0);
        if !refusal.limit().is_empty() {
            write_figure(out, count_at, "limit", refusal.limit());
        }
        for (key, value) in refusal.figures() {
            write_figure(out, count_at, key, itoa::Buffer::new().format(value));
        }
        if !refusal.tenant().is_empty() {
            write_figure(out, count_at, "tenant", refusal.tenant());
        }
        Ok(())
    })?;
    refusal.retry_delay().map_or(Ok(()), |delay| write_retry_info(out, delay))
}

pub(crate) fn decode(buf: &[u8]) -> Result<Details, HeadError> {
    let (&count, mut rest) = buf.split_first().ok_or(HeadError::Truncated)?;
    let mut details = Details::default();
    for _ in 0..count {
        let (kind, after) = split_u16(rest)?;
        let (value, after) = split_u16(after).and_then(|(len, after)| split(after, len))?;
        rest = after;
        match kind {
            ANY => {
                let (url, value) = split_u16(value).and_then(|(len, after)| split(after, len))?;
                details.other.push(AnyDetail { type_url: text(url)?, value: value.to_vec() });
            }
            ERROR_INFO => {
                let (reason, value) = split_short(value)?;
                let (domain, value) = split_short(value)?;
                let metadata = Metadata::decode(value)?.0;
                details.error_info = Some(ErrorInfo { reason, domain, metadata });
            }
            RETRY_INFO => {
                let us = value.first_chunk::<8>().ok_or(HeadError::Truncated)?;
                details.retry_delay = Some(Duration::from_micros(u64::from_be_bytes(*us)));
            }
            _ => {}
        }
    }
    Ok(details)
}

fn write_detail(
    out: &mut Vec<u8>,
    kind: u16,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), FieldTooLong>,
) -> Result<(), FieldTooLong> {
    out.extend_from_slice(&kind.to_be_bytes());
    let len_at = out.len();
    out.extend_from_slice(&[0; 2]);
    write(out)?;
    let len: u16 = FieldTooLong::check(out.len() - len_at - 2, u16::MAX.into())?;
    out[len_at..len_at + 2].copy_from_slice(&len.to_be_bytes());
    Ok(())
}

/// Rounded up: who comes back after the delay finds what was promised.
fn micros_up(delay: Duration) -> [u8; DELAY_LEN] {
    let us = delay.as_nanos().div_ceil(1_000);
    u64::try_from(us).unwrap_or(u64::MAX).to_be_bytes()
}

fn write_retry_info(out: &mut Vec<u8>, delay: Duration) -> Result<(), FieldTooLong> {
    write_detail(out, RETRY_INFO, |out| {
        out.extend_from_slice(&micros_up(delay));
        Ok(())
    })
}

/// Changes the delay of an encoded refusal that has one, which is its end.
pub(crate) fn patch_last_delay(out: &mut [u8], delay: Duration) {
    let at = out.len() - DELAY_LEN;
    out[at..].copy_from_slice(&micros_up(delay));
}

const DELAY_LEN: usize = size_of::<u64>();

fn write_short(out: &mut Vec<u8>, text: &str) -> Result<(), FieldTooLong> {
    out.push(FieldTooLong::check(text.len(), u8::MAX.into())?);
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// One pair of metadata. Keys and figures are ours and short.
fn write_figure(out: &mut Vec<u8>, count_at: usize, key: &str, value: &str) {
    out[count_at] += 1;
    out.push(key.len() as u8);
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(&(value.len() as u16).to_be_bytes());
    out.extend_from_slice(value.as_bytes());
}

fn split(buf: &[u8], len: u16) -> Result<(&[u8], &[u8]), HeadError> {
    buf.split_at_checked(usize::from(len)).ok_or(HeadError::Truncated)
}

fn split_u16(buf: &[u8]) -> Result<(u16, &[u8]), HeadError> {
    let (len, rest) = buf.split_first_chunk::<2>().ok_or(HeadError::Truncated)?;
    Ok((u16::from_be_bytes(*len), rest))
}

fn split_short(buf: &[u8]) -> Result<(Cow<'static, str>, &[u8]), HeadError> {
    let (&len, rest) = buf.split_first().ok_or(HeadError::Truncated)?;
    let (bytes, rest) = split(rest, u16::from(len))?;
    Ok((text(bytes)?.into(), rest))
}

fn text(bytes: &[u8]) -> Result<String, HeadError> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| HeadError::Text)
}
