// Runs a script's cases and reports each as one line of JSON on standard output.
import assert from 'node:assert/strict';

export async function run(cases) {
  const only = process.argv.slice(2);
  for (const [name, test] of Object.entries(cases)) {
    if (only.length && !only.includes(name)) continue;
    const began = performance.now();
    let error = '';
    try {
      await test();
    } catch (e) {
      error = String(e?.stack ?? e);
    }
    console.log(JSON.stringify({ name, error, seconds: (performance.now() - began) / 1000 }));
  }
}

// rejects checks that a promise fails with exactly this class and returns the error.
export async function rejects(promise, kind) {
  try {
    await promise;
  } catch (e) {
    assert.equal(e.constructor.name, kind.name, String(e));
    return e;
  }
  assert.fail(`no ${kind.name} was thrown`);
}

export async function eventually(check, within = 3000) {
  const end = performance.now() + within;
  while (!(await check())) {
    assert.ok(performance.now() < end, `not within ${within} ms`);
    await new Promise((r) => setTimeout(r, 10));
  }
}
