// The TypeScript SDK of MCP against /mcp of a running server: `node mcp_client.mjs URL FOLDER`, where the folder holds the SDK.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, folder] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const sdk = async (path) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/${path}`)));
const { Client } = await sdk("client/index.js");
const { StreamableHTTPClientTransport } = await sdk("client/streamableHttp.js");

const client = new Client({ name: "interop", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(`${url}/mcp`)));
const { tools } = await client.listTools();
assert(tools.find((tool) => tool.name === "add")?.outputSchema);
// The SDK itself compares the answer with the tool's output schema.
const added = await client.callTool({ name: "add", arguments: { a: 1, b: 2 } });
assert.equal(added.structuredContent.result, 3);
const steps = [];
const told = { name: "test_tool_with_progress", arguments: {} };
await client.callTool(told, undefined, { onprogress: (step) => steps.push(step.progress) });
assert(steps.length > 0 && steps.every((step, at) => at === 0 || step > steps[at - 1]), steps.join());
assert((await client.callTool({ name: "test_error_handling", arguments: {} })).isError);
await client.close();
