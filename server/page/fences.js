// An answer's text as plain paragraphs and fenced code blocks. All of it is set as text.

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\s]*)[^`]*$/;

function closes(line, fence) {
  const text = line.trim();
  return text.length >= fence.length && text === fence[0].repeat(text.length);
}

/** `[{ code, language, text }]` in order; a block that is not closed reaches to the end. */
function segmentsOf(text) {
  const segments = [];
  let lines = [];
  let block = null;
  const end = () => {
    const [code, language] = [block !== null, block ? block.language : ''];
    if (code || lines.length > 0) segments.push({ code, language, text: lines.join('\n') });
    lines = [];
  };
  for (const line of text.split('\n')) {
    const opening = block ? null : FENCE.exec(line);
    if (opening) {
      end();
      block = { fence: opening[1], language: opening[2] };
    } else if (block && closes(line, block.fence)) {
      end();
      block = null;
    } else {
      lines.push(line);
    }
  }
  end();
  return segments;
}

function segmentElement(segment) {
  if (!segment.code) return make('div', { className: 'prose' });
  const pre = make('pre', { tabIndex: 0 }, make('code'));
  pre.setAttribute('aria-label', segment.language ? `Code, ${segment.language}` : 'Code');
  pre.setAttribute('role', 'group');
  return pre;
}

function fits(element, segment) {
  return element && (element.tagName === 'PRE') === segment.code;
}

/** Makes `container` show `text`; elements that are right already stay as they are. */
function showAnswer(container, text) {
  const segments = segmentsOf(text);
  segments.forEach((segment, i) => {
    let element = container.children[i];
    if (!fits(element, segment)) {
      const made = segmentElement(segment);
      if (element) element.replaceWith(made);
      else container.append(made);
      element = made;
    }
    const body = segment.code ? segment.text : segment.text.replace(/^\n+|\n+$/g, '');
    setText(segment.code ? element.firstChild : element, body);
  });
  while (container.children.length > segments.length) container.lastChild.remove();
}
