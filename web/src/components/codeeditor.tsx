// A text editor for JSON: colours, line numbers, undo, folding, and marks where something is wrong. Loaded when it is needed.
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { json } from "@codemirror/lang-json";
import {
  bracketMatching,
  foldGutter,
  foldKeymap,
  HighlightStyle,
  indentOnInput,
  syntaxHighlighting,
} from "@codemirror/language";
import { Annotation, Compartment, EditorState, StateEffect, StateField } from "@codemirror/state";
import type { Range } from "@codemirror/state";
import { Decoration, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import type { DecorationSet } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useEffect, useEffectEvent, useRef } from "react";
import type { ReactNode } from "react";

export interface Mark {
  from: number;
  to: number;
  message: string;
  tone: "bad" | "wait";
}

/** A part of the text to show; a new one each time, also where it is the same part. */
export interface Spot {
  from: number;
  to: number;
}

const COLOURS = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--later)" },
  { tag: tags.string, color: "var(--good)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--busy)" },
]);

const LOOK = EditorView.theme({
  "&": {
    height: "min(72vh, 620px)",
    fontSize: "13px",
    color: "var(--ink)",
    backgroundColor: "var(--card)",
    border: "1px solid var(--line-strong)",
    borderRadius: "8px",
    overflow: "hidden",
  },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "1px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5" },
  ".cm-content": { caretColor: "var(--ink)" },
  ".cm-gutters": { color: "var(--faint)", backgroundColor: "var(--sunk)", borderRight: "1px solid var(--line)" },
  ".cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--accent) 6%, transparent)" },
  "&.cm-focused .cm-matchingBracket": { backgroundColor: "var(--accent-soft)" },
  "&.cm-focused .cm-nonmatchingBracket": { backgroundColor: "var(--bad-soft)" },
  ".cm-foldPlaceholder": { color: "var(--faint)", backgroundColor: "var(--sunk)", borderColor: "var(--line)" },
  ".flaw-bad": { textDecoration: "underline wavy var(--bad)", textUnderlineOffset: "3px" },
  ".flaw-wait": { textDecoration: "underline wavy var(--wait)", textUnderlineOffset: "3px" },
  ".line-bad": { backgroundColor: "var(--bad-soft)" },
});

const OUTSIDE = Annotation.define<boolean>(); // a text that was not typed here
const INVALID = new Compartment();
const setMarks = StateEffect.define<DecorationSet>();
const MARKS = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update: (before, change) => {
    const set = change.effects.find((effect) => effect.is(setMarks));
    return set ? set.value : before.map(change.changes);
  },
  provide: (field) => EditorView.decorations.from(field),
});

/** Marks of no length would not be seen: each has a character at least, and one that is wrong its line. */
function decorated(state: EditorState, marks: readonly Mark[]): DecorationSet {
  const end = state.doc.length;
  const ranges = marks.flatMap(({ from, to, message, tone }): Range<Decoration>[] => {
    if (!end) return [];
    const first = Math.max(0, Math.min(from, end - 1));
    const mark = Decoration.mark({ class: `flaw-${tone}`, attributes: { title: message } });
    const line = state.doc.lineAt(first).from;
    return [
      mark.range(first, Math.min(Math.max(to, first + 1), end)),
      ...(tone === "bad" ? [Decoration.line({ class: "line-bad" }).range(line)] : []),
    ];
  });
  return Decoration.set(ranges, true);
}

export default function CodeEditor({
  label,
  value,
  onChange,
  marks,
  spot,
}: {
  label: string;
  value: string;
  onChange: (value: string) => void;
  marks: readonly Mark[];
  spot: Spot | null;
}): ReactNode {
  const host = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
  const sent = useRef([value]); // what was typed here and may still come back as `value`, in order
  const tell = useEffectEvent((text: string): void => {
    sent.current.push(text);
    onChange(text);
  });
  const begin = useEffectEvent((): readonly [string, string] => [label, value]);
  useEffect(() => {
    const [name, doc] = begin();
    // In a shadow tree its styles are sheets that a script makes; style elements are what the page's policy forbids.
    const root = host.current!.shadowRoot ?? host.current!.attachShadow({ mode: "open" });
    const made = new EditorView({
      parent: root,
      root,
      doc,
      extensions: [
        lineNumbers(),
        foldGutter(),
        history(),
        indentOnInput(),
        bracketMatching(),
        highlightActiveLine(),
        json(),
        syntaxHighlighting(COLOURS),
        EditorView.lineWrapping,
        EditorState.tabSize.of(2),
        // Tab is not among the keys: it leads on to the next control.
        keymap.of([...defaultKeymap, ...historyKeymap, ...foldKeymap]),
        MARKS,
        LOOK,
        INVALID.of([]),
        EditorView.contentAttributes.of({ "aria-label": name, spellcheck: "false", autocapitalize: "off" }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged && !update.transactions.some((one) => one.annotation(OUTSIDE)))
            tell(update.state.doc.toString());
        }),
      ],
    });
    made.scrollDOM.tabIndex = 0; // what scrolls is reached, and scrolled, by keys as well
    view.current = made;
    return () => {
      made.destroy();
      view.current = null;
    };
  }, []);
  useEffect(() => {
    const ours = sent.current.indexOf(value);
    sent.current = ours < 0 ? [value] : sent.current.slice(ours);
    const shown = view.current;
    if (ours >= 0 || !shown) return;
    shown.dispatch({
      changes: { from: 0, to: shown.state.doc.length, insert: value },
      annotations: OUTSIDE.of(true),
    });
  }, [value]);
  useEffect(() => {
    const shown = view.current;
    if (!shown || shown.state.doc.toString() !== value) return; // about a text that has gone on since
    const invalid = marks.some(({ tone }) => tone === "bad");
    shown.dispatch({
      effects: [
        setMarks.of(decorated(shown.state, marks)),
        INVALID.reconfigure(EditorView.contentAttributes.of({ "aria-invalid": String(invalid) })),
      ],
    });
  }, [marks, value]);
  useEffect(() => {
    const shown = view.current;
    if (!shown || !spot) return;
    const end = shown.state.doc.length;
    const selection = { anchor: Math.min(spot.from, end), head: Math.min(spot.to, end) };
    shown.dispatch({ selection, effects: EditorView.scrollIntoView(selection.anchor, { y: "center" }) });
    shown.focus();
  }, [spot]);
  return <div ref={host} className="code-editor" />;
}
