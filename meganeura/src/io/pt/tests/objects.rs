//! Calls, modules and arrays in a pickle.

use super::*;

/// Nothing is called, whatever a pickle would call: there are the arguments, and nothing else.
#[test]
fn calls_give_nothing_but_their_arguments() -> Result<()> {
    let w = || tensor("FloatStorage", "0", 0, &[1], &[1]);
    let call = |global: &str, arguments: &[&[u8]], rest: &[u8]| {
        let global = format!("c{global}\n").into_bytes();
        [&global[..], &tuple(arguments), b"R", rest].concat()
    };
    let read = |value: &[u8]| to_safetensors(&archive(&pickle(value), &[("0", floats(&[1.0]))]));
    for nothing in [
        call("os\nsystem", &[&text("rm -rf /")], b""),
        call("torchvision.models.resnet\nResNet", &[], b""),
        call("collections\nOrderedDict", &[b"N"], b""),
        // The result of a call is called.
        [&b"("[..], &call("os\ngetenv", &[], b""), b"(tRl"].concat(),
        b"cos\nsystem\n".to_vec(),
    ] {
        assert!(read(&nothing).unwrap_err().to_string().contains("the file has no tensors"));
    }
    let message = error(&archive(&pickle(&call("torch._utils\n_rebuild_tensor_v2", &[b"N", b"N"], b"")), &[]));
    assert!(message.contains("_rebuild_tensor_v2"), "{message}");
    let names = |value: &[u8]| -> Result<String> {
        let tensors = tensors_from_safetensors(&read(value)?, &Device::cpu())?;
        Ok(tensors.keys().cloned().collect::<Vec<_>>().join(" "))
    };
    // An object with arguments, items, keys and attributes; attributes in `__slots__`; a pair of Python 2.
    let full = [&b"a("[..], &text("k"), &w(), b"u", &dict(&[("f", w())]), b"b"].concat();
    assert_eq!(names(&call("a\nB", &[&w()], &[&w()[..], &full].concat()))?, "0 f k");
    assert_eq!(names(&call("a\nB", &[], &[b"N", &dict(&[("s", w())])[..], b"\x86b"].concat()))?, "s");
    let pairs = [&b"](]("[..], &text("w"), &w(), b"ee"].concat();
    assert_eq!(names(&call("collections\nOrderedDict", &[&pairs], b""))?, "w");
    // An object that has itself.
    assert_eq!(names(&[b"ca\nB\n)\x81q\x05}(", &text("me")[..], b"h\x05", &text("w"), &w(), b"ub"].concat())?, "w");
    Ok(())
}

/// A module has the tensors of its `state_dict`.
#[test]
fn modules_are_read_without_their_classes() -> Result<()> {
    let w = |offset| tensor("FloatStorage", "0", offset, &[1], &[1]);
    let module = |parameters: &[(&str, Vec<u8>)], buffers: &[(&str, Vec<u8>)], modules: &[(&str, Vec<u8>)]| {
        let unsaved = [&b"c__builtin__\nset\n(]("[..], &text("scratch"), b"etR"].concat();
        let state = dict(&[
            ("training", b"\x88".to_vec()),
            ("_parameters", dict(parameters)),
            ("_buffers", dict(buffers)),
            ("_non_persistent_buffers_set", unsaved),
            ("_modules", dict(modules)),
            ("note", w(0)),
        ]);
        [&b"cmine\nNet\n)\x81"[..], &state, b"b"].concat()
    };
    let inner = module(&[("weight", w(1)), ("bias", b"N".to_vec())], &[], &[]);
    let shared = [&inner[..], b"q\x09"].concat();
    let net = module(
        &[("gain", w(0))],
        &[("mean", w(2)), ("scratch", w(3))],
        &[("a", shared), ("b", b"h\x09".to_vec()), ("none", b"N".to_vec())],
    );
    let file = to_safetensors(&archive(&pickle(&net), &[("0", floats(&[0.0, 1.0, 2.0, 3.0]))]))?;
    let tensors = tensors_from_safetensors(&file, &Device::cpu())?;
    assert_eq!(tensors.keys().collect::<Vec<_>>(), ["a.weight", "b.weight", "gain", "mean"]);
    assert_eq!((tensors["b.weight"].item()?, tensors["mean"].item()?), (1.0, 2.0));
    Ok(())
}

/// NumPy's arrays, in the forms of protocols 2 and 5.
#[test]
fn arrays_are_read() -> Result<()> {
    let dtype = |name: &str, order: &str| {
        let state = tuple(&[b"K\x03", &text(order), b"N", b"N", b"N"]);
        [&b"cnumpy\ndtype\n"[..], &tuple(&[&text(name), b"\x89", b"\x88"]), b"R", &state, b"b"].concat()
    };
    let array = |dtype: &[u8], order: &[u8], data: &[u8]| {
        let start = tuple(&[b"cnumpy\nndarray\n", b"K\x00\x85", b"C\x01b"]);
        let state = tuple(&[b"K\x01", &ints(&[2, 2]), dtype, order, data]);
        [&b"cnumpy._core.multiarray\n_reconstruct\n"[..], &start, b"R", &state, b"b"].concat()
    };
    let latin = |bytes: &[u8]| {
        let characters: String = bytes.iter().map(|&byte| char::from(byte)).collect();
        [&b"c_codecs\nencode\n"[..], &tuple(&[&text(&characters), &text("latin1")]), b"R"].concat()
    };
    let four = floats(&[1.0, -2.0, 3.0, 4.5]);
    let plain = [&[b'C', 16][..], &four].concat();
    let buffer = [
        &b"cnumpy._core.numeric\n_frombuffer\n"[..],
        &tuple(&[&plain, &dtype("f4", "<"), &ints(&[4]), &text("C")]),
        b"R",
    ]
    .concat();
    let value = dict(&[
        ("rows", array(&dtype("f4", "<"), b"\x89", &latin(&four))),
        ("columns", array(&dtype("f4", "<"), b"\x88", &latin(&four))),
        ("bytes", array(&dtype("u1", "|"), b"\x89", b"C\x04\xff\x00\x01\x02")),
        ("buffer", buffer),
        ("wide", array(&dtype("f4", ">"), b"\x89", &latin(&four))),
        ("objects", array(&dtype("O8", "|"), b"\x89", b"]")),
    ]);
    let file = to_safetensors(&archive(&pickle(&value), &[]))?;
    let tensors = tensors_from_safetensors(&file, &Device::cpu())?;
    assert_eq!(tensors["rows"].to_vec()?, [1.0, -2.0, 3.0, 4.5]);
    assert_eq!(tensors["columns"].to_vec()?, [1.0, 3.0, -2.0, 4.5]);
    assert_eq!(tensors["bytes"].to_u32_vec()?, [255, 0, 1, 2]);
    assert_eq!((tensors["buffer"].shape(), tensors["buffer"].to_vec()?[3]), ([4].into(), 4.5));
    assert_eq!(tensors.refused().keys().collect::<Vec<_>>(), ["objects", "wide"]);
    // Fewer bytes than numbers.
    let short = array(&dtype("f8", "<"), b"\x89", &latin(&four));
    let message = error(&archive(&pickle(&dict(&[("x", short)])), &[]));
    assert!(message.contains("x: it reaches beyond its storage of 16 bytes"), "{message}");
    Ok(())
}
