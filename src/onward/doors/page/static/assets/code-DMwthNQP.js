import{vt as e}from"./basics-CmZSUIkk.js";function t(e){return{type:e.type,payload:e.payload,...e.queue===e.type?{}:{queue:e.queue},...e.priority===`normal`?{}:{priority:e.priority},...e.session_id?{session_id:e.session_id}:{}}}var n=e=>`'${e.replaceAll(`'`,`'\\''`)}'`;function r(e,t,r){let i=e===`GET`?``:` \\\n  -H 'content-type: application/json' \\\n  -d ${n(r)}`;return`curl -s${e===`POST`||e===`GET`?``:` -X ${e}`} ${n(location.origin+t)}${i}`}function i(e){return r(`POST`,`/api/v2/tasks?wait_ms=30000`,JSON.stringify(t(e)))}function a(e){let{type:n,payload:r,...i}=t(e),a=Object.entries(i).map(([e,t])=>`, ${e}=${o(t)}`);return`import asyncio

from onward import Client


async def main():
    async with Client(${o(location.origin)}) as client:
        task = await client.submit(${o(n)}, ${o(r)}, wait_ms=30_000${a.join(``)})
        print(task.state, task.result)


asyncio.run(main())
`}function o(t){return t==null?`None`:t===!0?`True`:t===!1?`False`:typeof t!=`object`||e(t)?JSON.stringify(t):Array.isArray(t)?`[${t.map(o).join(`, `)}]`:`{${Object.entries(t).map(([e,t])=>`${JSON.stringify(e)}: ${o(t)}`).join(`, `)}}`}export{i as n,a as r,r as t};