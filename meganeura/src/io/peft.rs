//! Files of low-rank adapters that PEFT wrote: the names of their parts, and the settings beside them.

#[cfg(not(target_family = "wasm"))]
use std::path::Path;

use serde_json::{Map, Value};

use crate::Result;
use crate::error::{bail, shortened};

/// The name of the file with the settings, in the folder of the adapters.
#[cfg(not(target_family = "wasm"))]
pub(super) const CONFIG: &str = "adapter_config.json";

/// Settings that do not change what the tensors compute, or that are applied.
const HARMLESS: [&str; 30] = [
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
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "modules_to_save", // They are tensors of the file.
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern", // The rank is that of the factors.
    "revision",
    "runtime_config",
    "target_modules",
    "target_parameters",
    "task_type",
    "use_rslora",
];

/// The settings that decide the scale of adapters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Settings {
    alpha: f64,
    /// The scale is `α/√r` instead of `α/r`.
    is_root: bool,
}

impl Settings {
    /// The settings in a file `adapter_config.json`.
    ///
    /// # Errors
    ///
    /// Fails if a setting changes the result and is not applied.
    pub(super) fn parse(text: &[u8]) -> Result<Self> {
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
        let Some(alpha) = config.get("lora_alpha").map_or(Some(8.0), Value::as_f64) else {
            bail!(Checkpoint, "`lora_alpha` is not a number");
        };
        Ok(Self { alpha, is_root: config.get("use_rslora").is_some_and(is_set) })
    }

    /// The settings beside a file of adapters, if there are any.
    #[cfg(not(target_family = "wasm"))]
    pub(super) fn beside(path: &Path) -> Result<Option<Self>> {
        let path = path.with_file_name(CONFIG);
        if !path.is_file() {
            return Ok(None);
        }
        let text = super::disk::read(&path).map_err(|error| super::io_error("read", &path, error))?;
        Self::parse(&text).map(Some).map_err(|error| error.context(path.display()))
    }

    /// The factor of `B·A` for adapters of this rank.
    pub(super) fn scale(self, rank: usize) -> f64 {
        let rank = rank as f64;
        self.alpha / if self.is_root { rank.sqrt() } else { rank }
    }
}

/// `true` for the name of a part of an adapter, here or in another program.
pub(super) fn is_part(name: &str) -> bool {
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
        assert_eq!(parse(r#""use_rslora":false,"use_dora":false,"alpha_pattern":{}"#).unwrap().scale(4), 4.0);
        assert_eq!(parse(r#""use_rslora":true,"init_lora_weights":true"#).unwrap().scale(4), 8.0);
        assert_eq!(parse(r#""rank_pattern":{"q":2},"later":null"#).unwrap().scale(2), 8.0);
        for (rest, part) in [
            (r#""use_dora":true"#, "`use_dora` is true"),
            (r#""alpha_pattern":{"q":32}"#, "`alpha_pattern` is {\"q\":32}"),
            (r#""init_lora_weights":"pissa""#, "`init_lora_weights` is \"pissa\""),
            (r#""lora_bias":true"#, "`lora_bias`"),
            (r#""a_setting_of_tomorrow":1"#, "`a_setting_of_tomorrow` is 1"),
        ] {
            let error = parse(rest).unwrap_err();
            assert!(error.message().contains(part), "{error}");
        }
        assert!(Settings::parse(br#"{"peft_type":"LOHA"}"#).unwrap_err().message().contains("`peft_type` is \"LOHA\""));
        assert!(Settings::parse(b"[]").unwrap_err().message().contains("not an object"));
    }
}
