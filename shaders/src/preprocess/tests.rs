//! The effect of each directive, and the errors of malformed ones.

use super::*;

/// Expands a kernel named `k`. There are two more files: `shared/a`, which includes `shared/b`.
fn expand_text(text: &str, defines: &[(&str, &str)]) -> Result<String, ExpandError> {
    let source = |name: &str| match name {
        "k" => Some(text),
        "shared/a" => Some("#include \"shared/b\"\na\n"),
        "shared/b" => Some("b ${B}\n"),
        _ => None,
    };
    expand(source, "k", defines)
}

fn message(text: &str, defines: &[(&str, &str)]) -> String {
    expand_text(text, defines).expect_err("the text is wrong").to_string()
}

#[test]
fn includes_come_once() {
    let text = "#include \"shared/a\"\n#include \"shared/b\"\n#include \"shared/a\"\n#include \"k\"\nk";
    assert_eq!(expand_text(text, &[("B", "1")]).unwrap(), "b 1\na\nk\n");
}

#[test]
fn macros_expand_where_they_are_inserted() {
    let text = "#macro sum(A, TO)\n#for I in 2\n${TO} += ${A}_${I} ${B};\n#endfor\n#endmacro\nk\n";
    let inserted = "#for H in 2\n#insert sum(H, y)\n#endfor\n#insert sum( B , z )";
    let wgsl = "k\ny += 0_0 1;\ny += 0_1 1;\ny += 1_0 1;\ny += 1_1 1;\nz += 1_0 1;\nz += 1_1 1;\n";
    assert_eq!(expand_text(&format!("{text}{inserted}"), &[("B", "1")]).unwrap(), wgsl);
    // Even if it is not inserted, its names count as used.
    assert_eq!(expand_text(text, &[("B", "1")]).unwrap(), "k\n");
    assert_eq!(expand_text(text, &[]).unwrap(), "k\n");
    let error = message(&format!("{text}{inserted}"), &[]);
    assert_eq!(error, "k.wgsl:3: `B` is used here, but not defined");
}

#[test]
fn macros_see_no_loop_around_them() {
    let text = "#macro f()\n${I}\n#endmacro\n#for I in 1\n#insert f()\n#endfor";
    assert_eq!(message(text, &[]), "k.wgsl:2: `I` is used here, but not defined");
}

#[test]
fn wrong_macros() {
    assert_eq!(message("#insert f()", &[]), "k.wgsl:1: there is no macro `f` to insert");
    assert_eq!(message("#macro f()\nk", &[]), "k.wgsl:1: this #macro has no #endmacro");
    assert_eq!(message("k\n#endmacro", &[]), "k.wgsl:2: this #endmacro has no #macro");
    let f = "#macro f(A)\n#insert f(A)\n#endmacro\n";
    assert_eq!(message(&format!("{f}{f}"), &[]), "`f` is defined twice");
    assert_eq!(message(&format!("{f}#insert f(1)"), &[]), "k.wgsl:2: `f` would be inserted into itself");
    assert_eq!(message(&format!("{f}#insert f()"), &[]), "k.wgsl:4: cannot make sense of `#insert f()`");
}

#[test]
fn holes_take_any_text() {
    let text = "x${A}y${B}${A}\n  ${C}";
    let defines = [("A", "1"), ("B", "${A}"), ("C", "#if\nf(i + 1u);")];
    assert_eq!(expand_text(text, &defines).unwrap(), "x1y${A}1\n  #if\nf(i + 1u);\n");
}

#[test]
fn conditions_select_by_value() {
    let text = "#if OP == max\nmax\n#else\nother\n#endif";
    assert_eq!(expand_text(text, &[("OP", "max")]).unwrap(), "max\n");
    assert_eq!(expand_text(text, &[("OP", "maximum")]).unwrap(), "other\n");
    let text = "#if OP != max\nother\n#endif\nend";
    assert_eq!(expand_text(text, &[("OP", "max")]).unwrap(), "end\n");
    assert_eq!(expand_text(text, &[("OP", "sum")]).unwrap(), "other\nend\n");
}

#[test]
fn conditions_select_by_sum() {
    let text = "#for R in 6\n#for I in 2\n#if R == I * STRIDE + 3\n${R}=${I}*2+3\n#endif\n#endfor\n#endfor";
    assert_eq!(expand_text(text, &[("STRIDE", "2")]).unwrap(), "3=0*2+3\n5=1*2+3\n");
    assert_eq!(expand_text("#if A != 2 * B\nother\n#endif", &[("A", "6"), ("B", "3")]).unwrap(), "");
    let both = "#for I in 3\n#for K in 3\n#if 2 * I + A == K\n${I}${K}\n#endif\n#if I * A != 1 + K\n#else\n${K}\n#endif\n#endfor\n#endfor";
    assert_eq!(expand_text(both, &[("A", "1")]).unwrap(), "01\n0\n1\n");
    assert_eq!(message("#if A == 2 * B\n#endif", &[("A", "6")]), "k.wgsl:1: `B` is used here, but not defined");
    assert_eq!(expand_text("#if A\n#if B == 2 * C\n#endif\n#endif\nk", &[("C", "1")]).unwrap(), "k\n");
    let wrong = [("A", "6"), ("B", "x")];
    assert_eq!(message("#if A == 2 * B\n#endif", &wrong), "k.wgsl:1: cannot make sense of `#if A == 2 * B`");
}

#[test]
fn conditions_select_by_definition() {
    let text = "#if BIAS\nbias ${BIAS}\n#endif\nend";
    assert_eq!(expand_text(text, &[("BIAS", "0")]).unwrap(), "bias 0\nend\n");
    assert_eq!(expand_text(text, &[]).unwrap(), "end\n");
    let text = "#if !BIAS\nnone\n#endif\nend";
    assert_eq!(expand_text(text, &[("BIAS", "0")]).unwrap(), "end\n");
    assert_eq!(expand_text(text, &[]).unwrap(), "none\nend\n");
}

#[test]
fn one_part_of_a_condition_is_kept() {
    let text = "#if A == 0\nzero\n#elif A == 1\n#if B\nb\n#endif\none\n#elif A == 2\ntwo\n#else\nother\n#endif\nend";
    let kept = |a: &str| expand_text(text, &[("A", a)]).unwrap();
    assert_eq!(["0", "1", "2", "3"].map(kept), ["zero\nend\n", "one\nend\n", "two\nend\n", "other\nend\n"]);
    // The first that holds.
    assert_eq!(expand_text("#if A\n1\n#elif A\n2\n#else\n3\n#endif", &[("A", "")]).unwrap(), "1\n");
    assert_eq!(expand_text("#if A\n#if B\n1\n#elif C == 1\n2\n#endif\n#endif\nk", &[]).unwrap(), "k\n");
    assert_eq!(message("#if A\n#elif B == 1\n#endif", &[]), "k.wgsl:2: `B` is used here, but not defined");
    assert_eq!(expand_text("#if A\n#elif B == 1\n#endif\nk", &[("A", "")]).unwrap(), "k\n");
    assert_eq!(expand_text("#if A\n1\n#elif B == 2 * A\n2\n#endif", &[("A", "x"), ("B", "1")]).unwrap(), "1\n");
}

#[test]
fn conditions_nest() {
    let text = "#if A == 1\n#if B == 1\n11\n#else\n10\n#endif\n#else\n#if B == 1\n01\n#else\n00\n#endif\n#endif";
    for (a, b) in [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")] {
        assert_eq!(expand_text(text, &[("A", a), ("B", b)]).unwrap(), format!("{a}{b}\n"));
    }
}

#[test]
fn loops_repeat_and_nest() {
    let text = "#for I in 2\n#for J in COLUMNS\na_${I}_${J}\n#endfor\n#if I == 1\nlast\n#endif\n#endfor\nend";
    let wgsl = "a_0_0\na_0_1\na_0_2\na_1_0\na_1_1\na_1_2\nlast\nend\n";
    assert_eq!(expand_text(text, &[("COLUMNS", "3")]).unwrap(), wgsl);
    assert_eq!(expand_text("#for I in N\n${I}${A}\n#endfor\nk", &[("N", "0"), ("A", "1")]).unwrap(), "k\n");
}

#[test]
fn unbalanced_loops() {
    assert_eq!(message("#for I in 2\nk", &[]), "k.wgsl:1: this #for has no #endfor");
    assert_eq!(message("k\n#endfor", &[]), "k.wgsl:2: this #endfor has no #for");
    assert_eq!(message("#for I in N\n#endfor", &[]), "k.wgsl:1: `N` is used here, but not defined");
    assert_eq!(message("#for I in 2\n#if I == 1\n#endfor", &[]), "k.wgsl:2: this #if has no #endif");
}

#[test]
fn skipped_parts_need_no_defines_but_count_as_uses() {
    let text = "#if A\n#include \"shared/missing\"\n#if B == 1\n${C}\n#endif\n#endif\nk";
    assert_eq!(expand_text(text, &[]).unwrap(), "k\n");
    assert_eq!(expand_text(text, &[("B", "1"), ("C", "2")]).unwrap(), "k\n");
}

#[test]
fn unknown_kernel() {
    let error = expand(|_| None, "gemm", &[]).expect_err("there are no kernels");
    assert_eq!(error.to_string(), "there is no kernel `gemm`");
}

#[test]
fn unknown_include() {
    assert_eq!(message("k\n#include \"shared/c\"", &[]), "k.wgsl:2: there is no file `shared/c` to include");
}

#[test]
fn undefined_hole() {
    assert_eq!(message("k\n\n${N}", &[]), "k.wgsl:3: `N` is used here, but not defined");
    assert_eq!(message("#include \"shared/a\"", &[]), "shared/b.wgsl:1: `B` is used here, but not defined");
}

#[test]
fn undefined_condition() {
    assert_eq!(message("#if N == 1\n#endif", &[]), "k.wgsl:1: `N` is used here, but not defined");
}

#[test]
fn unused_define() {
    assert_eq!(message("${N}", &[("N", "1"), ("M", "2")]), "`M` is defined, but kernel `k` does not use it");
}

#[test]
fn duplicate_define() {
    assert_eq!(message("${N}", &[("N", "1"), ("N", "1")]), "`N` is defined twice");
}

#[test]
fn unbalanced_conditions() {
    assert_eq!(message("k\n#if A\n#if B\n#endif", &[]), "k.wgsl:2: this #if has no #endif");
    assert_eq!(message("#if A\n#endif\n#endif", &[]), "k.wgsl:3: this #endif has no #if");
    assert_eq!(message("#else\n#endif", &[]), "k.wgsl:1: this #else has no #if");
    assert_eq!(message("#if A\n#else\n#else\n#endif", &[]), "k.wgsl:3: this #else has no #if");
    assert_eq!(message("#elif A\n#endif", &[]), "k.wgsl:1: this #elif has no #if");
    assert_eq!(message("#if A\n#else\n#elif B\n#endif", &[]), "k.wgsl:3: this #elif has no #if");
}

#[test]
fn malformed_lines() {
    for line in [
        "#define N 1",
        "#if",
        "#if A B",
        "#if == 1",
        "#if A ==",
        "#if A == 1 +",
        "#if A == 1 * 99999999999999999999",
        "#else if A",
        "#if !",
        "#if ! A == 1",
        "#for I",
        "#for I in x + 1",
        "#for 2 in 3",
        "#endif A",
        "#include shared/a",
        "#include \"\"",
        "#insert \"shared/a\"",
        "#insert f(1, )",
        "#macro f",
        "x ${N",
        "x ${}",
        "x ${N + 1}",
    ] {
        let text = format!("k\n  {line}\n");
        assert_eq!(message(&text, &[]), format!("k.wgsl:2: cannot make sense of `{line}`"));
    }
}
