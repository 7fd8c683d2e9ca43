// Where a text stops being JSON, and what is missing there. The messages of browsers differ, and some name no place.

export interface JsonFault {
  offset: number;
  line: number; // from 1
  column: number; // from 1
  message: string;
}

const BLANK = /[ \t\n\r]*/y;
const PLAIN = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/y;
// eslint-disable-next-line no-control-regex -- JSON takes none of them
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*/y; // all but its end

class Stop extends Error {
  constructor(
    readonly offset: number,
    message: string,
  ) {
    super(message);
  }
}

/** null: it is JSON. */
export function jsonFault(text: string): JsonFault | null {
  try {
    read(text);
    return null;
  } catch (error) {
    if (!(error instanceof Stop)) throw error;
    const before = text.slice(0, error.offset).split("\n");
    const { offset, message } = error;
    return { offset, line: before.length, column: before.at(-1)!.length + 1, message };
  }
}

function read(text: string): void {
  let at = 0;
  const pass = (pattern: RegExp): boolean => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at += found[0].length;
    return found !== null;
  };
  const blank = (): void => void pass(BLANK);
  const stop = (message: string, offset = at): never => {
    throw new Stop(offset, message);
  };
  const take = (sign: string): boolean => {
    blank();
    if (text[at] !== sign) return false;
    at++;
    return true;
  };
  const string = (): void => {
    const begin = at;
    pass(STRING);
    if (text[at] === '"') at++;
    else if (text[at] === undefined || text[at] === "\n") stop("the string that begins here has no end", begin);
    else stop(text[at] === "\\" ? "unknown escape" : "a control character must be escaped");
  };
  const after = (end: string): boolean => {
    if (take(",")) return false;
    if (!take(end)) stop(at >= text.length ? `${end} is missing` : `expected , or ${end}`);
    return true;
  };
  const value = (): void => {
    blank();
    if (text[at] === '"') string();
    else if (take("{")) {
      if (take("}")) return;
      do {
        blank();
        if (text[at] !== '"') stop(text[at] === "}" ? "no comma stands before }" : "expected a name in double quotes");
        string();
        if (!take(":")) stop("expected : after the name");
        value();
      } while (!after("}"));
    } else if (take("[")) {
      if (take("]")) return;
      do {
        blank();
        if (text[at] === "]") stop("no comma stands before ]");
        value();
      } while (!after("]"));
    } else if (!pass(PLAIN)) stop(text[at] === "'" ? "strings stand in double quotes" : "expected a value");
  };
  value();
  blank();
  if (at < text.length) stop("nothing may follow the value");
}
