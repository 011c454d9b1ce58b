use super::*;
use crate::Device;
use crate::io::tensors_from_safetensors;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// The header of a file with these numbers of tensors and settings.
fn start(version: u32, tensors: u64, settings: u64) -> Vec<u8> {
    [MAGIC, &version.to_le_bytes(), &tensors.to_le_bytes(), &settings.to_le_bytes()].concat()
}

fn tensor(name: &str, extents: &[u64], code: u32, offset: u64) -> Vec<u8> {
    let axes = u32::try_from(extents.len()).unwrap().to_le_bytes();
    let extents: Vec<u8> = extents.iter().flat_map(|extent| extent.to_le_bytes()).collect();
    [&text(name)[..], &axes, &extents, &code.to_le_bytes(), &offset.to_le_bytes()].concat()
}

/// A file with the tensors that these bytes describe, of which there are `count`, and with these numbers.
fn file(count: u64, tensors: &[u8], data: &[u8]) -> Vec<u8> {
    let mut file = [start(3, count, 0), tensors.to_vec()].concat();
    file.resize(file.len().next_multiple_of(32), 0);
    [file, data.to_vec()].concat()
}

fn refused(bytes: &[u8], part: &str) {
    let error = to_safetensors(bytes).unwrap_err();
    assert!(error.kind() == ErrorKind::Checkpoint && error.message().contains(part), "{part}: {error}");
}

/// Settings of every kind, another alignment, tensors in another order than their numbers, and one of another type.
#[test]
fn settings_are_passed_over() -> Result<()> {
    let list = |kind: u32, count: u64, items: &[u8]| {
        [&LIST_KIND.to_le_bytes(), &kind.to_le_bytes(), &count.to_le_bytes()[..], items].concat()
    };
    const LIST_KIND: u32 = 9;
    let mut settings = Vec::new();
    for (kind, width) in [(0_u32, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (7, 1), (10, 8), (11, 8), (12, 8)]
    {
        settings.push([text("number"), kind.to_le_bytes().to_vec(), vec![7; width]].concat());
        settings.push([text("list"), list(kind, 3, &vec![7; width * 3])].concat());
    }
    settings.push([text("text"), 8_u32.to_le_bytes().to_vec(), text("ä∞")].concat());
    settings.push([text("texts"), list(8, 2, &[text("a"), text("")].concat())].concat());
    settings.push([text("lists"), list(9, 1, &list(8, 1, &text("a"))[4..])].concat());
    settings.push([text(ALIGNMENT), 4_u32.to_le_bytes().to_vec(), 8_u32.to_le_bytes().to_vec()].concat());
    let tensors = [tensor("b", &[2], 0, 8), tensor("odd", &[256], 16, 16), tensor("a", &[1, 2], 25, 0)].concat();
    let mut file = [start(2, 3, settings.len() as u64), settings.concat(), tensors].concat();
    file.resize(file.len().next_multiple_of(8), 0);
    file.extend([1, 0, 254, 255, 9, 9, 9, 9]);
    file.extend([1.5_f32, -2.0].iter().flat_map(|number| number.to_le_bytes()));
    file.extend([0; 66]);

    let tensors = tensors_from_safetensors(&to_safetensors(&file)?, &Device::cpu())?;
    assert_eq!(tensors["a"].shape(), [2, 1].into());
    assert_eq!((tensors["a"].to_i32_vec()?, tensors["b"].to_vec()?), (vec![1, -2], vec![1.5, -2.0]));
    let why = &tensors.refused()["odd"];
    assert!(why.starts_with("it is quantised as IQ2_XXS; Q4_0, ") && why.ends_with("unquantised tensors are read"));
    for end in 0..file.len() {
        assert_eq!(to_safetensors(&file[..end]).unwrap_err().kind(), ErrorKind::Checkpoint, "{end}");
    }
    Ok(())
}

#[test]
fn files_that_hold_no_tensors_are_errors() {
    let one = |extents: &[u64], code, offset| file(1, &tensor("x", extents, code, offset), &[0; 64]);
    assert!(to_safetensors(&one(&[16], 0, 0)).is_ok());
    refused(&one(&[17], 0, 0), "`x` ends behind the file");
    refused(&one(&[16], 0, 1), "`x` ends behind the file");
    refused(&one(&[16], 0, u64::MAX), "`x` ends behind the file");
    refused(&one(&[u64::MAX, 9], 0, 0), "`x` has the shape");
    refused(&one(&[16, 2], 8, 0), "`x` has the shape [2, 16], which does not fit");
    refused(&one(&[1; 65], 0, 0), "`x` has 65 axes");
    refused(&one(&[32], 20, 0), "x: it is quantised as IQ4_NL; Q4_0");
    refused(&one(&[32], 99, 0), "x: it is quantised as type 99; Q4_0");
    let pair = |second: &str, offset| [tensor("x", &[4], 0, 0), tensor(second, &[4], 0, offset)].concat();
    assert!(to_safetensors(&file(2, &pair("y", 16), &[0; 64])).is_ok());
    refused(&file(2, &pair("y", 15), &[0; 64]), "`y` overlaps with another tensor");
    refused(&file(2, &pair("x", 16), &[0; 64]), "two tensors are called `x`");
    refused(&file(0, &[], &[]), "the file has no tensors");
    refused(&start(1, 1, 0), "version 1; versions 2 and 3 are read");
    refused(&[MAGIC, &3_u32.to_be_bytes()].concat(), "highest byte");
    // Numbers that nothing in the file bears out.
    refused(&start(3, u64::MAX, 0), "ends within its header");
    refused(&start(3, 1, u64::MAX), "ends within its header");
    let setting = |kind: u32, value: &[u8]| [&start(3, 0, 1)[..], &text("a"), &kind.to_le_bytes(), value].concat();
    refused(&setting(8, &u64::MAX.to_le_bytes()), "ends within its header");
    refused(&setting(13, &[0; 8]), "a setting has the type 13");
    for kind in [0_u32, 8, 12] {
        let list = [&kind.to_le_bytes()[..], &u64::MAX.to_le_bytes()].concat();
        refused(&setting(9, &list), "ends within its header");
    }
    let nested = [9_u32.to_le_bytes().to_vec(), 1_u64.to_le_bytes().to_vec()].concat().repeat(9);
    refused(&setting(9, &nested), "nested more than 8 deep");
    let alignment = [start(3, 0, 1), text(ALIGNMENT), [4_u32, 0].map(u32::to_le_bytes).concat()].concat();
    refused(&alignment, "multiples of 0");
    let name = [&start(3, 1, 0)[..], &1_u64.to_le_bytes(), &[0xff]].concat();
    refused(&name, "not UTF-8");
}

/// A tensor without elements has no bytes, wherever it is.
#[test]
fn empty_tensors_are_refused_by_name() -> Result<()> {
    let tensors = [tensor("x", &[4], 0, 0), tensor("none", &[0, 3], 0, 8)].concat();
    let tensors = tensors_from_safetensors(&to_safetensors(&file(2, &tensors, &[0; 16]))?, &Device::cpu())?;
    assert_eq!(tensors.refused()["none"], "it has no elements: [3, 0]");
    assert_eq!(tensors["x"].to_vec()?, [0.0; 4]);
    Ok(())
}
