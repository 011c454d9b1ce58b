//! Files of low-rank adapters that PEFT wrote: the names of their parts, and the settings beside them.

#[cfg(not(target_family = "wasm"))]
use std::path::Path;

use regex_lite::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use crate::Result;
use crate::error::{bail, shortened};

/// The name of the file with the settings, in the folder of the adapters.
#[cfg(not(target_family = "wasm"))]
pub(crate) const CONFIG: &str = "adapter_config.json";

/// Settings that do not change what the tensors compute, or that are applied.
const HARMLESS: [&str; 32] = [
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "bias", // Biases are tensors of the file.
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_bias",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "modules_to_save", // They are tensors of the file.
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_dora",
    "use_rslora",
];

/// The settings of adapters that decide what they compute.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    rank: Option<f64>,
    ranks: Patterns,
    alpha: f64,
    alphas: Patterns,
    /// The scale is `α/√r` instead of `α/r`.
    is_root: bool,
    pub(crate) dropout: f64,
    /// The weights below the adapters are `[in, out]`.
    pub(crate) fan_in_fan_out: bool,
    /// Adapters have magnitudes.
    pub(crate) has_magnitudes: bool,
    /// Second factors have biases.
    pub(crate) has_biases: bool,
}

/// The size of a compiled pattern that is allowed, in bytes.
const LARGEST: usize = 1 << 18;

/// Numbers for modules whose names match.
#[derive(Clone, Debug)]
struct Patterns {
    setting: &'static str,
    all: Vec<(Regex, f64)>,
}

impl Patterns {
    /// The patterns of a setting.
    fn parse(config: &Map<String, Value>, setting: &'static str) -> Result<Self> {
        let entries = match config.get(setting) {
            None | Some(Value::Null) => return Ok(Self { setting, all: Vec::new() }),
            Some(Value::Object(entries)) => entries,
            Some(_) => bail!(Checkpoint, "`{setting}` is not an object"),
        };
        let mut all = Vec::new();
        for (pattern, number) in entries {
            // As PEFT matches: a name, or its last segments.
            let regex = RegexBuilder::new(&format!("^(?:.*\\.)?(?:{pattern})$")).size_limit(LARGEST).build();
            let (Ok(regex), Some(number)) = (regex, number.as_f64()) else {
                let (pattern, number) = (shortened(pattern), number.to_string());
                bail!(Checkpoint, "`{setting}` has `{pattern}`: {}, which is not understood", shortened(&number));
            };
            all.push((regex, number));
        }
        Ok(Self { setting, all })
    }

    /// The number for a module, if a pattern matches it. PEFT takes the first of several, whose order is lost here.
    fn of(&self, module: &str) -> Result<Option<f64>> {
        let mut found = self.all.iter().filter(|(regex, _)| regex.is_match(module)).map(|&(_, number)| number);
        let first = found.next();
        if found.any(|number| Some(number) != first) {
            bail!(Checkpoint, "`{}` has several numbers for `{}`", self.setting, shortened(module));
        }
        Ok(first)
    }
}

impl Settings {
    /// The settings in a file `adapter_config.json`.
    ///
    /// # Errors
    ///
    /// Fails if a setting changes the result and is not applied.
    pub(crate) fn parse(text: &[u8]) -> Result<Self> {
        let Ok(config) = serde_json::from_slice::<Map<String, Value>>(text) else {
            bail!(Checkpoint, "not an object in JSON");
        };
        let is_set = |value: &Value| match value {
            Value::Null | Value::Bool(false) => false,
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::Object(entries) => !entries.is_empty(),
            _ => true,
        };
        let refuse = |name: &str, value: &Value| {
            let value = value.to_string();
            bail!(
                Checkpoint,
                "`{}` is {}: it changes what the adapters compute, and is not supported; merge them in PEFT and save the model",
                shortened(name),
                shortened(&value)
            );
        };
        if let Some(kind) = config.get("peft_type").filter(|kind| *kind != "LORA") {
            return refuse("peft_type", kind);
        }
        // These change the weights below the adapters.
        if let Some(value @ Value::String(init)) = config.get("init_lora_weights")
            && !["gaussian", "orthogonal", "eva"].contains(&&**init)
        {
            return refuse("init_lora_weights", value);
        }
        if let Some((name, value)) = config.iter().find(|(name, value)| !HARMLESS.contains(&&***name) && is_set(value))
        {
            return refuse(name, value);
        }
        let number = |name: &str, default: f64| match config.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(number),
                None => bail!(Checkpoint, "`{name}` is not a number"),
            },
        };
        let dropout = number("lora_dropout", 0.0)?;
        if !(0.0..1.0).contains(&dropout) {
            bail!(Checkpoint, "`lora_dropout` is {dropout}; it must be at least 0 and below 1");
        }
        Ok(Self {
            rank: config.get("r").and_then(Value::as_f64),
            ranks: Patterns::parse(&config, "rank_pattern")?,
            alpha: number("lora_alpha", 8.0)?,
            alphas: Patterns::parse(&config, "alpha_pattern")?,
            is_root: config.get("use_rslora").is_some_and(is_set),
            dropout,
            fan_in_fan_out: config.get("fan_in_fan_out").is_some_and(is_set),
            has_magnitudes: config.get("use_dora").is_some_and(is_set),
            has_biases: config.get("lora_bias").is_some_and(is_set),
        })
    }

    /// The settings beside a file of adapters, if there are any.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn beside(path: &Path) -> Result<Option<Self>> {
        let path = path.with_file_name(CONFIG);
        if !path.is_file() {
            return Ok(None);
        }
        let text = super::disk::read(&path).map_err(|error| super::io_error("read", &path, error))?;
        Self::parse(&text).map(Some).map_err(|error| error.context(path.display()))
    }

    /// The factor of `B·A` for the adapter of a module, of this rank.
    pub(crate) fn scale(&self, module: &str, rank: usize) -> Result<f64> {
        let expected = self.ranks.of(module)?.or(self.rank);
        let rank = rank as f64;
        if let Some(expected) = expected.filter(|&expected| expected != rank) {
            bail!(Checkpoint, "the adapter of `{}` has rank {rank}, {expected} in its settings", shortened(module));
        }
        let alpha = self.alphas.of(module)?.unwrap_or(self.alpha);
        Ok(alpha / if self.is_root { rank.sqrt() } else { rank })
    }
}

/// The name of a module and the rest of a tensor's name, in a file of PEFT: the part of an adapter, or what was trained
/// with them.
pub(crate) fn parsed(name: &str) -> (&str, Option<&str>) {
    let name = name.strip_prefix("base_model.model.").unwrap_or(name);
    match name.find("lora_") {
        Some(0) => ("", Some(name)),
        Some(at) if name[..at].ends_with('.') => (&name[..at - 1], Some(&name[at..])),
        _ => (name, None),
    }
}

/// `true` for the name of a part of an adapter, here or in another program.
pub(crate) fn is_part(name: &str) -> bool {
    name.split('.').any(|segment| segment.starts_with("lora_"))
}

/// `true` for a name of a part that PEFT gives it: such a file has nothing but adapters and what was trained with them.
pub(super) fn is_peft(name: &str) -> bool {
    let parts = ["lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"];
    name.split('.').any(|segment| parts.contains(&segment))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_applied_or_refused() {
        let parse = |rest: &str| {
            let text =
                format!(r#"{{"peft_type":"LORA","r":4,"lora_alpha":16,"bias":"none","target_modules":["q"],{rest}}}"#);
            Settings::parse(text.as_bytes())
        };
        assert_eq!(
            parse(r#""use_rslora":false,"use_dora":false,"alpha_pattern":{}"#).unwrap().scale("q", 4).unwrap(),
            4.0
        );
        assert_eq!(parse(r#""use_rslora":true,"init_lora_weights":true"#).unwrap().scale("q", 4).unwrap(), 8.0);
        let ranks = parse(r#""rank_pattern":{"q":2},"later":null"#).unwrap();
        assert_eq!(ranks.scale("a.q", 2).unwrap(), 8.0);
        assert_eq!(ranks.scale("a.k", 4).unwrap(), 4.0);
        let error = ranks.scale("a.q", 4).unwrap_err();
        assert_eq!(error.message(), "the adapter of `a.q` has rank 4, 2 in its settings");
        // Names, their last segments, and expressions.
        let alphas = parse(r#""alpha_pattern":{"^a.q":32,"layers\\.[0-9]+\\.k":8,"v|w":2}"#).unwrap();
        for (module, scale) in [
            ("a.q", 8.0),
            ("b.a.q", 4.0),
            ("aq", 4.0),
            ("x.layers.12.k", 2.0),
            ("layers.k", 4.0),
            ("x.w", 0.5),
            ("xw", 4.0),
            ("x.w.y", 4.0),
        ] {
            assert_eq!(alphas.scale(module, 4).unwrap(), scale, "{module}");
        }
        let twice = parse(r#""alpha_pattern":{"q":32,"a.q":8}"#).unwrap();
        assert_eq!(twice.scale("b.q", 4).unwrap(), 8.0);
        assert_eq!(twice.scale("a.q", 4).unwrap_err().message(), "`alpha_pattern` has several numbers for `a.q`");
        for (rest, part) in [
            (r#""alpha_pattern":{"(?=q)q":32}"#, "`alpha_pattern` has `(?=q)q`: 32, which is not understood"),
            (r#""rank_pattern":[2]"#, "`rank_pattern` is not an object"),
            (r#""target_parameters":["experts.up"]"#, "`target_parameters` is"),
            (r#""init_lora_weights":"pissa""#, "`init_lora_weights` is \"pissa\""),
            (r#""a_setting_of_tomorrow":1"#, "`a_setting_of_tomorrow` is 1"),
        ] {
            let error = parse(rest).unwrap_err();
            assert!(error.message().contains(part), "{error}");
        }
        assert!(Settings::parse(br#"{"peft_type":"LOHA"}"#).unwrap_err().message().contains("`peft_type` is \"LOHA\""));
        assert!(Settings::parse(b"[]").unwrap_err().message().contains("not an object"));
    }
}
