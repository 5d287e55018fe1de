// Compares haggle's tokenizer with Hugging Face's `tokenizers` library, for files of the SentencePiece kind: symbols are
// characters, spaces are written as another character, bytes have tokens of their own (Llama 2, Mistral, Gemma).
//
// usage: node compare_spm.js make FOLDER                        small tokenizers, each with its cases
//        node compare_spm.js check HAGGLE TOKENIZER.json ... [-n N]   N random texts and lists of ids (2000) through both
//
// `make` writes FOLDER/spm-<kind>/tokenizer.json and cases.jsonl: "text" and the ids that the library gives it, or "ids"
// alone; "reversible" false where no text is given back; "decoded" is the text that the library gives the ids ("skip": without special tokens).
// tests/model/test_tokenizer.c runs every folder of tests/tokenizers. Needs the npm package `tokenizers` (made with 0.23.2).
const fs = require('fs')
const path = require('path')
const child = require('child_process')
const {Tokenizer} = require('tokenizers')

const CORPUS = `The quick brown fox jumps over the lazy dog. It's what they'll say, isn't it? the the the and and of of to to
In 2024 there were 1234567 results, 99.5% of them good. def main(argc, argv):\n    return sum(x for x in range(10))
Der schnelle braune Fuchs springt über den faulen Hund. Ça va? Où est la bibliothèque? 你好，世界。 こんにちは 안녕하세요
Привет, мир! The model reads the text and the text reads the model. Hello world hello world  double  spaces   here.
` .repeat(3)

// A small vocabulary, made by merging the pair that is seen most often, again and again, inside words.
function train(merges) {
  const words = new Map()
  for (const w of CORPUS.replaceAll(' ', '▁').replaceAll('\n', '▁').match(/▁+[^▁]*|[^▁]+/g)) words.set(w, (words.get(w) || 0) + 1)
  let list = [...words].map(([w, n]) => [[...w], n])
  const symbols = [...new Set(list.flatMap(([w]) => w))].sort().filter(c => !'你好％Ω'.includes(c)), made = []
  for (let i = 0; i < merges; i++) {
    const seen = new Map()
    for (const [w, n] of list)
      for (let k = 0; k + 1 < w.length; k++) seen.set(w[k] + ' ' + w[k + 1], (seen.get(w[k] + ' ' + w[k + 1]) || 0) + n)
    const known = new Set([...symbols, ...made.map(m => m.join(''))])
    const [pair] = [...seen].filter(([p]) => p.split(' ').every(s => known.has(s))).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))[0]
    const [a, b] = pair.split(' ')
    made.push([a, b])
    list = list.map(([w, n]) => {
      const out = []
      for (let k = 0; k < w.length; k++) w[k] === a && w[k + 1] === b ? (out.push(a + b), k++) : out.push(w[k])
      return [out, n]
    })
  }
  return [symbols, made]
}

const hex = b => '<0x' + b.toString(16).toUpperCase().padStart(2, '0') + '>'
const added = (content, more) => ({content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true, ...more})
const seq = (name, ...list) => ({type: 'Sequence', [name]: list})
const replace = (from, to) => ({type: 'Replace', pattern: typeof from === 'string' ? {String: from} : from, content: to})
const meta = more => ({type: 'Metaspace', replacement: '▁', ...more})
const strip = (start, stop) => ({type: 'Strip', content: ' ', start, stop})
const bytes = {type: 'ByteFallback'}, fuse = {type: 'Fuse'}
const llama = seq('normalizers', {type: 'Prepend', prepend: '▁'}, replace(' ', '▁'))
const unspace = seq('decoders', replace('▁', ' '), bytes, fuse, strip(1, 0))
const flags = [added('<one>', {single_word: true, special: false}), added('<left>', {lstrip: true}), added('<right>', {rstrip: true, special: false}),
  added('<both>', {lstrip: true, rstrip: true, normalized: true, special: false}), added('word', {single_word: true, normalized: true, special: false}),
  added('<n>', {normalized: true}), added('  ', {normalized: true, special: false}), added('[INST]', {}), added('[/INST]', {})]

const KINDS = {
  'llama2': {normalizer: llama, decoder: unspace},
  'pairs': {normalizer: llama, decoder: unspace, pairs: true, added: [added('<unk>'), added('<s>', {normalized: true}), added('</s>', {normalized: true})]},
  'first': {pre: meta({prepend_scheme: 'first', split: false}), decoder: unspace, added: flags},
  'always': {pre: meta({prepend_scheme: 'always', split: true}), decoder: meta({prepend_scheme: 'always', split: true})},
  'old': {pre: meta({add_prefix_space: true, str_rep: '▁'}), decoder: meta({add_prefix_space: true}), added: flags},
  'never': {pre: meta({prepend_scheme: 'never', split: true, add_prefix_space: false}), decoder: meta({prepend_scheme: 'never'}), added: flags},
  'first-split': {normalizer: {type: 'Strip', strip_left: true, strip_right: false}, pre: meta({prepend_scheme: 'first'}), decoder: meta({prepend_scheme: 'first'}), added: flags.slice(0, 6)},
  'gemma': {normalizer: replace(' ', '▁'), pre: {type: 'Split', pattern: {String: ' '}, behavior: 'MergedWithPrevious', invert: false},
    decoder: seq('decoders', replace('▁', ' '), bytes, fuse), added: [...flags, added('\n\n', {special: false}), added('<table>', {special: false})]},
  'unknown': {normalizer: llama, decoder: unspace, model: {byte_fallback: false, fuse_unk: false}},
  'unknown-fused': {normalizer: llama, decoder: unspace, model: {byte_fallback: false, fuse_unk: true}},
  'some-bytes': {normalizer: llama, decoder: unspace, drop: [0xE4, 0xF0, 0x09], model: {fuse_unk: false}},
  'ignore': {pre: meta({prepend_scheme: 'always'}), decoder: meta({}), model: {ignore_merges: true}, cut: 40},
  'added': {normalizer: llama, decoder: unspace, added: flags},
  'digits': {pre: seq('pretokenizers', {type: 'Digits', individual_digits: true}, meta({prepend_scheme: 'first'}), {type: 'Punctuation', behavior: 'Isolated'}),
    decoder: seq('decoders', bytes, {...strip(0, 1), content: 'e'}, meta({prepend_scheme: 'first'}))},
  'twice': {pre: seq('pretokenizers', {type: 'WhitespaceSplit'}, meta({}), meta({prepend_scheme: 'always'})), decoder: seq('decoders', meta({}), strip(2, 0), bytes)},
  'regex': {normalizer: seq('normalizers', replace({Regex: '\\s{2,}'}, ' '), replace('th', ''), {type: 'NFKC'}, replace(' ', '▁')), pre: meta({prepend_scheme: 'first', split: false}),
    decoder: seq('decoders', replace({Regex: '▁+'}, ' '), bytes, fuse, strip(2, 0)), added: flags},
  'no-decoder': {pre: {type: 'Whitespace'}, decoder: null},
}

function build(k) {
  const [symbols, merges] = train(150)
  const vocab = ['<unk>', '<s>', '</s>']
  for (let b = 0; b < 256; b++) if (!(k.drop || []).includes(b)) vocab.push(hex(b))
  vocab.push(...symbols)
  for (const m of merges) if (!vocab.includes(m.join(''))) vocab.push(m.join(''))
  const tokens = k.added && k.added[0].content === '<unk>' ? k.added : [added('<unk>'), added('<s>'), added('</s>'), ...(k.added || [])]
  const list = tokens.map(t => ({id: vocab.includes(t.content) ? vocab.indexOf(t.content) : vocab.push(t.content) - 1, ...t}))
  const n = Object.keys(vocab).length
  return {version: '1.0', truncation: null, padding: null, added_tokens: list, normalizer: k.normalizer || null, pre_tokenizer: k.pre || null,
    post_processor: {type: 'TemplateProcessing', single: [{SpecialToken: {id: '<s>', type_id: 0}}, {Sequence: {id: 'A', type_id: 0}}],
      pair: [{Sequence: {id: 'A', type_id: 0}}, {Sequence: {id: 'B', type_id: 1}}], special_tokens: {'<s>': {id: '<s>', ids: [1], tokens: ['<s>']}}},
    decoder: k.decoder, model: {type: 'BPE', dropout: null, unk_token: '<unk>', continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: true,
      byte_fallback: true, ignore_merges: false, vocab: Object.fromEntries(vocab.filter(t => !list.some(a => a.content === t && a.id >= 3)).map(t => [t, vocab.indexOf(t)])),
      merges: merges.slice(0, k.cut || merges.length).map(m => k.pairs ? m : m.join(' ')), ...(k.model || {})}}
}

const POOL = [...'abcdefthexyzABCTHE  \t\n.,!?()-_<>0123456789▁', ' ', ' ', '  ', '    ', '\n\n', '\r\n', '\u00a0', '\u3000', 'é', 'e\u0301', 'ß', '你', '好', '世', 'の', '가',
  'Ω', 'Я', '½', 'ﬁ', '①', '😀', '👩‍💻', '\uFFFD', '𐐀', '\0', '\x7f', 'the ', ' and', ' the', 'model', '▁the', '▁▁', '<s>', '</s>', '<unk>', '<0x0A>', '<0xE4>', '<one>', '<left>',
  '<right>', '<both>', 'word', 'words', '<n>', '[INST]', '[/INST]', '<table>', 'th']
const FIXED = ['', ' ', '  ', '   ', '\n', '\t', '▁', 'a', ' a', '  a', 'a ', 'Hello world', 'Hello  world', ' Hello world ', '\n\n\tTabs\tand  spaces\n', '你好，世界。 こんにちは', '😀😀 👩‍💻!',
  'The model reads the text.\n\nThe text reads back.\r\n', '<s>a</s>', 'a<s>b', ' <s> a </s> ', '<s>[INST] Hello [/INST] world </s><s>[INST] the [/INST]', '  <left>  <right>  <both>  x',
  '<one> <one>x x<one> (<one>)', 'word words sword word.', '<n>a <n>', '<0x41>', 'a\0b', '                    x', 'ththe th  the', 'aΩ½Ωb😀世界']

function random(seed) {
  let x = BigInt(seed) * 2654435761n + 12345n
  return n => { x = (x * 6364136223846793005n + 1442695040888963407n) & ((1n << 64n) - 1n); return Number((x >> 33n) % BigInt(n)) }
}
const texts = (r, n) => Array.from({length: n}, () => Array.from({length: 1 + r(24)}, () => POOL[r(POOL.length)]).join(''))
// Ids at random, half of them bytes.
const idLists = (r, n, size) => Array.from({length: n}, () => Array.from({length: 1 + r(12)}, () => r(2) ? r(size) : 3 + r(250)))
// The library's versions differ in how they write an added token that is looked for in normalized text.
const isPlain = (file, ids) => !JSON.parse(fs.readFileSync(file)).added_tokens.some(a => a.normalized && ids.includes(a.id))
const encode = async (t, text) => (await t.encode(text, null, {addSpecialTokens: false})).getIds()

async function make(folder) {
  let number = 0
  for (const [name, k] of Object.entries(KINDS)) {
    const dir = path.join(folder, 'spm-' + name), file = path.join(dir, 'tokenizer.json'), r = random(number++)
    fs.mkdirSync(dir, {recursive: true})
    fs.writeFileSync(file, JSON.stringify(build(k)))
    const t = Tokenizer.fromFile(file), lines = []
    for (const text of [...FIXED, ...texts(r, 40)]) {
      const ids = await encode(t, text)
      lines.push({text, ids, ...(isPlain(file, ids) ? {decoded: await t.decode(ids, false)} : {reversible: false})})
    }
    for (const ids of idLists(r, 30, t.getVocabSize(true)).filter(l => isPlain(file, l)))
      lines.push({ids, decoded: await t.decode(ids, false)}, {ids, decoded: await t.decode(ids, true), skip: true})
    fs.writeFileSync(path.join(dir, 'cases.jsonl'), lines.map(l => JSON.stringify(l) + '\n').join(''))
    console.log(`${name}: ${t.getVocabSize(true)} tokens, ${lines.length} cases`)
  }
}

function haggle(program, file, lines, ...more) {
  const out = child.execFileSync(program, ['tokenize', '--tokenizer', file, ...more], {input: lines.map(l => JSON.stringify(l) + '\n').join(''), maxBuffer: 1 << 30})
  return out.toString().trim().split('\n').map(l => JSON.parse(l))
}

async function check(program, files, n) {
  let off = 0
  for (const file of files) {
    const t = Tokenizer.fromFile(file), r = random(file.length + n), some = [...FIXED, ...texts(r, n)], lists = idLists(r, n, t.getVocabSize(true)).filter(l => isPlain(file, l))
    const ids = haggle(program, file, some.map(text => ({text}))), back = haggle(program, file, lists, '--decode')
    let bad = 0
    const tell = (what, x, a, b) => bad++ < 3 && console.log(`  ${what} ${JSON.stringify(x)}\n    library ${JSON.stringify(a)}\n    haggle  ${JSON.stringify(b)}`)
    for (let i = 0; i < some.length; i++) {
      const expected = await encode(t, some[i])
      if (expected.join() !== ids[i].join()) tell('text', some[i], expected, ids[i])
    }
    for (let i = 0; i < lists.length; i++) {
      const expected = await t.decode(lists[i], false)
      if (expected !== back[i].text) tell('ids', lists[i], expected, back[i].text)
    }
    console.log(`${file}: ${some.length} texts and ${lists.length} lists of ids, ${bad} differ`)
    off += bad
  }
  return off ? 1 : 0
}

async function main(args) {
  const at = args.indexOf('-n'), n = at < 0 ? 2000 : Number(args.splice(at, 2)[1])
  if (args.length === 2 && args[0] === 'make') return make(args[1])
  if (args.length >= 3 && args[0] === 'check') return check(args[1], args.slice(2), n)
  console.error('usage: node compare_spm.js make FOLDER | check HAGGLE TOKENIZER.json ... [-n N]')
  return 2
}
main(process.argv.slice(2)).then(code => { process.exitCode = code })
