// Compiles kernels with Tint, Chrome's WGSL compiler, on a Dawn device without a GPU: node tint.mjs FOLDER
//
// FOLDER/baseline   WGSL for every device: each module becomes a pipeline within WebGPU's default limits.
// FOLDER/beyond     WGSL that needs more memory, f16 or subgroups: each module compiles, with the features that this device has.
// Kernels on cooperative matrices are not WebGPU, and are skipped.
import fs from 'node:fs';
import path from 'node:path';
import { create, globals } from 'webgpu';

Object.assign(globalThis, globals);

const folder = process.argv[2];
const gpu = create(['backend=null']);

// An adapter gives one device.
async function adapter() {
  const found = await gpu.requestAdapter();
  if (!found) throw new Error('Dawn has no adapter');
  return found;
}

const files = (part) => {
  const names = fs.existsSync(path.join(folder, part)) ? fs.readdirSync(path.join(folder, part)).sort() : [];
  return names.filter((name) => name.endsWith('.wgsl')).map((name) => path.join(part, name));
};

// The errors of a module, and then of its pipeline.
async function faults(device, code, withPipeline) {
  device.pushErrorScope('validation');
  const module = device.createShaderModule({ code });
  const { messages } = await module.getCompilationInfo();
  const found = messages.filter(({ type }) => type === 'error');
  const list = found.map(({ lineNum, message }) => `line ${lineNum}: ${message}`);
  if (withPipeline && list.length === 0) {
    const compute = { module, entryPoint: 'main' };
    await device.createComputePipelineAsync({ layout: 'auto', compute }).catch((error) => list.push(error.message));
  }
  const error = await device.popErrorScope();
  if (error && list.length === 0) list.push(error.message);
  return list;
}

async function compile(part, requiredFeatures, withPipeline) {
  const device = await (await adapter()).requestDevice({ requiredFeatures });
  let failed = 0;
  const list = files(part);
  for (const file of list) {
    const found = await faults(device, fs.readFileSync(path.join(folder, file), 'utf8'), withPipeline);
    if (found.length > 0) {
      failed += 1;
      console.log(`${file}: ${found[0]}`);
    }
  }
  const what = withPipeline ? 'pipelines at the default limits' : `modules with ${requiredFeatures.join(', ') || 'no feature'}`;
  console.log(`Tint: ${list.length - failed} of ${list.length} kernels become ${what}`);
  return { failed, count: list.length };
}

// The compiler must refuse invalid code; otherwise it would find nothing.
const probe = await (await adapter()).requestDevice();
const refused = {
  'a number out of range': 'const x: f32 = 3.4028236e38;',
  'nine buffers': [...Array(9).keys()]
    .map((at) => `@group(0) @binding(${at}) var<storage, read_write> b${at}: array<u32>;`).join('')
    + `@compute @workgroup_size(1) fn main() { ${[...Array(9).keys()].map((at) => `b${at}[0] = 1;`).join('')} }`,
  'too much workgroup memory':
    'var<workgroup> w: array<u32, 4097>; @compute @workgroup_size(1) fn main() { w[4096] = 1; }',
  'too many invocations': '@compute @workgroup_size(257) fn main() {}',
};
for (const [what, code] of Object.entries(refused)) {
  if ((await faults(probe, code, true)).length === 0) throw new Error(`Tint lets ${what} pass`);
}

const { features } = await adapter();
const optional = ['shader-f16', 'subgroups'].filter((feature) => features.has(feature));
const baseline = await compile('baseline', [], true);
const beyond = await compile('beyond', optional, false);
if (baseline.count === 0) throw new Error(`${folder} has no kernels`);
// Dawn's threads would keep the process alive.
process.exit(baseline.failed + beyond.failed > 0 ? 1 : 0);
