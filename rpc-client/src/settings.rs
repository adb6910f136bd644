//! The settings of a client as they stand in a file.

use std::time::Duration;

use rpc_codec::settings::{CodecName, OrOff, SettingsError, Size, Time, from_toml, set};
use serde::Deserialize;

use crate::{
    ClientBuilder,
    builder::{MIN_FRAME, MIN_KEEPALIVE, MIN_WAIT},
};

/// The settings of a client as a file has them, for [`ClientBuilder::settings`].
///
/// The names are those of the methods of [`ClientBuilder`]. Whatever is left out stays as the builder has it. Names
/// that do not exist are errors, and so is what cannot be: a value below the least one, where the builder takes
/// that instead, a codec that this build lacks, a delay between attempts that is longer than the longest.
///
/// Times have a unit (`"250ms"`, `"1m 30s"`), sizes are bytes (`65536`, `"64KiB"`; `"64KB"` are 64,000), and what can
/// be absent is `"off"`. This is all there is, at its default:
///
/// ```toml
#[doc = include_str!("settings.toml")]
/// ```
///
/// A program with settings of its own has these among them, as it is [`Deserialize`].
///
/// ```
/// use rpc_client::{Client, ClientSettings};
///
/// let settings = ClientSettings::from_toml(r#"
///     timeout = "1s"
///     backoff = { min = "50ms", max = "2s" }
/// "#).unwrap();
/// let client = Client::builder("library.internal:7000").settings(settings).build();
/// # drop(client);
/// ```
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct ClientSettings(Unchecked);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Unchecked {
    timeout: Option<OrOff<Time>>,
    codec: Option<CodecName>,
    connect_timeout: Option<Time>,
    backoff: Option<BackoffEntry>,
    wait_for_ready: Option<bool>,
    max_frame: Option<Size<u32>>,
    max_message: Option<Size<u32>>,
    stream_window: Option<Size<u32>>,
    keepalive_interval: Option<OrOff<Time>>,
    keepalive_timeout: Option<Time>,
    frame_timeout: Option<Time>,
    write_timeout: Option<Time>,
    trace_calls: Option<bool>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BackoffEntry {
    min: Time,
    max: Time,
}

/// What a file says that cannot be.
#[derive(Debug, thiserror::Error)]
enum Impossible {
    #[error("{setting} ({value:?}) must not be less than {least:?}")]
    TooShort { setting: &'static str, value: Duration, least: Duration },
    #[error("{setting} ({value}) must not be less than {least}")]
    TooSmall { setting: &'static str, value: u32, least: u32 },
    #[error("backoff.min ({min:?}) must not exceed backoff.max ({max:?})")]
    Backoff { min: Duration, max: Duration },
    #[error("this build has no {codec}: the codecs but bincode are features of the crate sluicegate", codec = .0.name())]
    UnsupportedCodec(rpc_codec::CodecId),
}

impl ClientSettings {
    /// Reads TOML. Other formats are read through `serde`.
    ///
    /// # Errors
    ///
    /// It is no TOML, or has a name or a value that is not known; the message says where. Or it has what cannot be; the message
    /// names the setting.
    pub fn from_toml(text: &str) -> Result<Self, SettingsError> {
        from_toml(text)
    }

    /// Sets what it has.
    pub(crate) fn apply(self, mut builder: ClientBuilder) -> ClientBuilder {
        let Self(settings) = self;
        let config = &mut builder.config;
        set(&mut config.timeout, settings.timeout.map(or_off));
        set(&mut config.codec, settings.codec.map(|CodecName(codec)| codec));
        set(&mut config.connect_timeout, settings.connect_timeout.map(Time::get));
        set(&mut config.min_backoff, settings.backoff.map(|backoff| backoff.min.get()));
        set(&mut config.max_backoff, settings.backoff.map(|backoff| backoff.max.get()));
        set(&mut config.wait_for_ready, settings.wait_for_ready);
        set(&mut config.max_frame, settings.max_frame.map(Size::get));
        set(&mut config.max_message, settings.max_message.map(Size::get));
        set(&mut config.stream_window, settings.stream_window.map(Size::get));
        set(&mut config.keepalive_interval, settings.keepalive_interval.map(or_off));
        set(&mut config.keepalive_timeout, settings.keepalive_timeout.map(Time::get));
        set(&mut config.frame_timeout, settings.frame_timeout.map(Time::get));
        set(&mut config.write_timeout, settings.write_timeout.map(Time::get));
        set(&mut config.trace_calls, settings.trace_calls);
        builder
    }
}

impl TryFrom<Unchecked> for ClientSettings {
    type Error = Impossible;

    fn try_from(settings: Unchecked) -> Result<Self, Impossible> {
        let interval = settings.keepalive_interval.and_then(OrOff::on);
        for (setting, value, least) in [
            ("connect_timeout", settings.connect_timeout, MIN_WAIT),
            ("backoff.min", settings.backoff.map(|backoff| backoff.min), MIN_WAIT),
            ("keepalive_interval", interval, MIN_KEEPALIVE),
            ("keepalive_timeout", settings.keepalive_timeout, MIN_KEEPALIVE),
            ("frame_timeout", settings.frame_timeout, MIN_WAIT),
            ("write_timeout", settings.write_timeout, MIN_WAIT),
        ] {
            if let Some(value) = value.map(Time::get).filter(|value| *value < least) {
                return Err(Impossible::TooShort { setting, value, least });
            }
        }
        for (setting, value, least) in
            [("max_frame", settings.max_frame, MIN_FRAME), ("stream_window", settings.stream_window, 1)]
        {
            if let Some(value) = value.map(Size::get).filter(|value| *value < least) {
                return Err(Impossible::TooSmall { setting, value, least });
            }
        }
        if let Some(BackoffEntry { min: Time(min), max: Time(max) }) = settings.backoff.filter(|of| of.min > of.max) {
            return Err(Impossible::Backoff { min, max });
        }
        match settings.codec {
            Some(CodecName(codec)) if !codec.is_supported() => Err(Impossible::UnsupportedCodec(codec)),
            _ => Ok(Self(settings)),
        }
    }
}

fn or_off(setting: OrOff<Time>) -> Option<Duration> {
    setting.on().map(Time::get)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Client;

    /// What a struct shows of each of its fields, by its name.
    fn fields(of: &impl std::fmt::Debug) -> BTreeMap<String, String> {
        let text = format!("{of:#?}");
        let (mut all, mut name) = (BTreeMap::<_, String>::new(), String::new());
        for line in text.lines().filter_map(|line| line.strip_prefix("    ")) {
            // One level deep it is a field; deeper, what belongs to the one before.
            if let Some((field, _)) = line.split_once(':').filter(|_| !line.starts_with(' ')) {
                field.clone_into(&mut name);
            }
            all.entry(name.clone()).or_default().push_str(line);
        }
        all
    }

    fn with(text: &str) -> ClientBuilder {
        Client::builder("nowhere").settings(ClientSettings::from_toml(text).unwrap())
    }

    fn list(builder: &ClientBuilder) -> BTreeMap<String, String> {
        fields(&builder.config)
    }

    #[test]
    fn the_file_of_defaults_has_the_defaults_and_all_there_are() {
        let defaults = include_str!("settings.toml");
        let shown = fields(&ClientSettings::from_toml(defaults).unwrap().0);
        assert!(shown.values().all(|value| !value.ends_with(": None,")), "one is missing: {shown:#?}");
        assert_eq!(list(&with(defaults)), list(&Client::builder("nowhere")));
    }

    #[test]
    fn a_file_sets_each_setting_of_a_client_and_no_other() {
        let set = list(&with(
            r#"
            timeout = "1s"
            connect_timeout = "2s"
            backoff = { min = "3s", max = "4s" }
            wait_for_ready = true
            max_frame = "5MiB"
            max_message = "6MiB"
            stream_window = "7MiB"
            keepalive_interval = "off"
            keepalive_timeout = "8s"
            frame_timeout = "9s"
            write_timeout = "11s"
        "#,
        ));
        const MIB: u32 = 1 << 20;
        let (s, builder) = (Duration::from_secs, || Client::builder("nowhere"));
        let said = builder()
            .timeout(s(1))
            .connect_timeout(s(2))
            .backoff(s(3), s(4))
            .wait_for_ready(true)
            .max_frame(5 * MIB)
            .max_message(6 * MIB)
            .stream_window(7 * MIB)
            .keepalive_interval(None)
            .keepalive_timeout(s(8))
            .frame_timeout(s(9))
            .write_timeout(s(11));
        assert_eq!(set, list(&said));
        let unset = list(&builder());
        let missing: Vec<_> = set.keys().filter(|name| set[*name] == unset[*name]).collect();
        // This build may have but one codec; interceptors are code, ids are for tests, and the last is the other switch.
        assert_eq!(missing, ["codec", "ids_used", "interceptors", "trace_calls"], "a setting that files do not have");
        assert_eq!(list(&with("trace_calls = true")), list(&builder().trace_calls(true)));
    }

    #[test]
    fn what_cannot_be_is_refused_and_named() {
        for (text, said) in [
            ("max_frames = 5", "unknown field `max_frames`"),
            ("backoff = { min = '1s' }", "missing field `max`"),
            ("backoff = { min = '5s', max = '1s' }", "backoff.min (5s) must not exceed backoff.max (1s)"),
            ("backoff = { min = '0s', max = '1s' }", "backoff.min (0ns) must not be less than 1ms"),
            ("max_frame = '1KiB'", "max_frame (1024) must not be less than 65536"),
            ("stream_window = 0", "stream_window (0) must not be less than 1"),
            ("connect_timeout = '0s'", "connect_timeout (0ns) must not be less than 1ms"),
            ("keepalive_interval = '5ms'", "keepalive_interval (5ms) must not be less than 10ms"),
            ("connect_timeout = '0'", "such as \"250ms\""),
            ("keepalive_timeout = 5", "such as \"250ms\""),
            ("codec = 'yaml'", "one of `bincode`"),
        ] {
            let error = ClientSettings::from_toml(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
