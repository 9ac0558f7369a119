# ruff: noqa: E501  (tables of words and rules)
"""Rules for sentences that people say: phrases that belong together, words where they usually stand.

    everyday -> at_home | errands | travel | work | ... -> "{one} has {few} {animals}"

The grammar of `sentences` covers the vocabulary with nonsense; a model that hears nothing else stumbles over plain talk,
most of all over short last words. These rules are for its `everyday` start, and share its names, places, days and numbers.
"""

from __future__ import annotations

EVERYDAY: dict[str, str] = {
    # people
    "family": "mother|father|sister|brother|aunt|uncle|cousin|grandfather|grandma|son|daughter|wife|husband|mum|dad|parents",
    "kin": "my {family}|her {family}|his {family}|our {family}|your {family}|their {family}",
    "job": "doctor|nurse|teacher|driver|waiter|lawyer|plumber|baker|farmer|painter|singer|pilot|engineer|librarian|cook|"
    "gardener|butcher|mechanic|secretary|receptionist|cleaner|barber|student|neighbour|landlord|boss|manager|postman|"
    "professor|actor|writer|soldier|policeman|firefighter|tailor|photographer|designer|journalist|electrician|coach",
    "one": "he|she|{name}|my {family}|the {job}|my friend|everyone|nobody|somebody|our neighbour|his wife|her boss",
    "many": "we|they|you|I|the children|the kids|my parents|our neighbours|some people|the students|most people|his friends",
    "them": "me|you|him|her|us|them|{name}|my {family}|the {job}|my friends|the children|everyone|our guests|anyone",
    "my": "my|your|his|her|our|their|the",
    "whose": "mine|yours|his|hers|ours|theirs",
    # things
    "belonging": "keys|wallet|glasses|umbrella|phone|passport|bag|gloves|hat|scarf|coat|purse|watch|ring|notebook|ticket|"
    "camera|charger|laptop|headphones|bike|jacket|sunglasses|lunch|homework|boots|driving licence|backpack|earrings",
    "garment": "shirt|dress|jacket|coat|sweater|skirt|pair of shoes|suit|pair of jeans|hat|raincoat|blouse|belt|pair of socks",
    "furniture": "table|chair|sofa|shelf|desk|bed|cupboard|drawer|wardrobe|bookcase|bench|armchair|counter|floor|carpet",
    "room": "kitchen|bedroom|bathroom|living room|garage|hall|garden|office|basement|attic|dining room|balcony|classroom",
    "device": "computer|printer|washing machine|fridge|oven|television|radio|phone|heater|alarm|camera|kettle|toaster|lamp|"
    "dishwasher|vacuum cleaner|microwave|air conditioner|tablet|screen|speaker|router|lawnmower|hairdryer|clock",
    "food": "bread|cheese|rice|soup|salad|chicken|fish|pasta|eggs|butter|ham|beans|fruit|cake|chocolate|honey|meat|"
    "potatoes|sausages|noodles|yoghurt|cereal|jam|beef|pork|shrimp|nuts|ice cream|biscuits|pancakes|toast|bacon",
    "fruit": "apples|bananas|oranges|grapes|cherries|lemons|pears|peaches|strawberries|plums|melons|carrots|onions|tomatoes|"
    "cucumbers|mushrooms|peppers|cabbages|peas|olives|garlic|spinach|pumpkins|blueberries",
    "drink": "water|milk|tea|coffee|juice|beer|wine|lemonade|hot chocolate|orange juice|green tea|apple juice|cold water",
    "dish": "{food} soup|{food} with {food}|{food} and {food}|roast chicken|fried {food}|a {food} sandwich|{fruit} salad|"
    "grilled fish|tomato soup|vegetable curry|a bowl of {food}|a slice of pizza|baked potatoes|a plate of {food}|{fruit} pie",
    "animal": "cat|dog|horse|rabbit|bird|parrot|goldfish|cow|sheep|pig|duck|chicken|mouse|fox|squirrel|puppy|kitten|tortoise",
    "animals": "cats|dogs|horses|rabbits|birds|parrots|cows|sheep|pigs|ducks|foxes|bees|butterflies|lions|elephants|whales",
    "plant": "roses|trees|tulips|flowers|tomatoes|herbs|bushes|sunflowers|beans|leaves|apple trees|vegetables|daisies",
    "sport": "football|tennis|chess|basketball|golf|cards|hockey|volleyball|badminton|cricket|rugby|baseball|table tennis",
    "instrument": "piano|guitar|violin|drums|flute|trumpet|cello|saxophone|harp|clarinet|accordion",
    "hobby": "reading|swimming|dancing|cooking|painting|fishing|singing|hiking|gardening|knitting|running|climbing|drawing|"
    "cycling|sailing|camping|skating|writing|shopping|travelling|baking|jogging|surfing|playing {sport}|playing the {instrument}",
    "subject_": "history|maths|physics|music|art|biology|chemistry|geography|French|Spanish|German|English|law|medicine|"
    "economics|philosophy|computer science|engineering|Italian|Chinese|Japanese|literature",
    "vehicle": "bus|train|car|taxi|plane|boat|tram|bike|motorbike|ferry|van|lorry|truck|ship|coach|helicopter|subway",
    "shop": "bakery|supermarket|bookshop|pharmacy|market|bank|post office|chemist|florist|butcher's|hardware store|"
    "shopping centre|toy shop|petrol station|garage|hairdresser|shoe shop|corner shop|department store|coffee shop",
    "building": "school|hospital|museum|station|airport|church|library|theatre|cinema|hotel|restaurant|castle|factory|"
    "university|town hall|stadium|police station|gym|swimming pool|café|gallery|prison|palace|tower|harbour|zoo|mosque|temple",
    "nature": "beach|lake|river|forest|mountain|park|island|desert|sea|valley|field|hill|waterfall|coast|village|woods|cliff",
    "weather": "sunny|cloudy|windy|foggy|rainy|cold|warm|hot|freezing|stormy|wet|dry|dark|nice|awful|icy|humid|chilly|mild",
    "season": "spring|summer|autumn|winter",
    "body": "head|back|foot|hand|knee|shoulder|ear|tooth|stomach|throat|finger|ankle|neck|arm|leg|elbow|toe|wrist|eye|nose",
    "illness": "a headache|a cold|the flu|a fever|a cough|a sore throat|a toothache|an allergy|a stomach ache|a broken {body}",
    "colour": "red|blue|green|yellow|black|white|brown|grey|pink|purple|orange|dark blue|light green|silver|golden",
    "mood": "happy|sad|tired|angry|hungry|thirsty|busy|late|ill|sick|bored|nervous|proud|excited|worried|surprised|afraid|"
    "ready|lonely|jealous|upset|shy|careful|patient|grateful|curious|disappointed|confused|relaxed|embarrassed|lucky",
    "trait": "kind|clever|funny|honest|brave|lazy|quiet|friendly|polite|rude|strong|tall|young|old|rich|famous|generous|"
    "helpful|serious|strict|stubborn|talented|reliable|charming|creative|ambitious|modest|selfish|sensible|cheerful",
    "quality": "beautiful|boring|cheap|expensive|difficult|easy|great|terrible|interesting|useful|important|strange|perfect|"
    "wonderful|dangerous|delicious|horrible|simple|broken|dirty|clean|empty|full|heavy|light|loud|soft|wide|narrow|huge|"
    "tiny|safe|fresh|sweet|bitter|sour|salty|comfortable|modern|ancient|popular|crowded|noisy|peaceful|sharp|smooth|wooden",
    "topic": "politics|the weather|music|money|the news|work|the future|the past|art|sports|her plans|his job|our holiday|"
    "the wedding|the accident|the film|the book|the problem|the party|the price|the war|the election|the exam|the match",
    "event": "party|wedding|meeting|concert|exam|match|lesson|film|funeral|festival|conference|interview|picnic|race|show|"
    "lecture|game|dinner|performance|ceremony|play|trip|holiday|barbecue|parade|exhibition|auction|rehearsal|appointment",
    "work_thing": "report|letter|contract|project|presentation|email|budget|invoice|plan|proposal|article|survey|design|"
    "list|agreement|schedule|form|document|application|summary|spreadsheet|drawing|essay|speech|translation|bill|menu",
    "part_of": "beginning|middle|end|top|bottom|edge|side|back|front|corner",
    # when, where, how
    "few": "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|a hundred|several|a few|many",
    "span": "{few} minutes|{few} hours|{few} days|{few} weeks|{few} months|{few} years|an hour|half an hour|a week|a month|"
    "a year|a moment|a few seconds|ages|a long time|almost a year|about an hour|the whole day|the rest of the week",
    "when": "today|tomorrow|yesterday|tonight|this morning|this afternoon|this evening|last night|last week|next week|now|"
    "last month|next month|next year|last year|on {day}|on {day} morning|on {day} evening|at the weekend|at noon|soon|"
    "at midnight|at {clock}|at {clock}|in the morning|in the evening|before dinner|after breakfast|after work|in {month}|"
    "in the {season}|last {season}|next {season}|every day|every {day}|once a week|twice a year|these days|at the moment|"
    "in {span}|by {day}|until {day}|at lunchtime|the day before yesterday|the other day|some day|one day|on {month} {ordinal}|"
    "during the {event}|after the {event}|before the {event}|right away|all day long|in the afternoon|as soon as possible",
    "past_when": "yesterday|last night|last week|last {season}|{span} ago|this morning|on {day}|in {month}|last {day}|"
    "the other day|a long time ago|last month|in {year}|when I was young|when he was a child|during the {season}|{span} ago",
    "somewhere": "on the {furniture}|in the {room}|under the {furniture}|at home|at work|at school|in the car|on the {vehicle}|"
    "at the {building}|at the {shop}|near the {building}|behind the {building}|next to the {shop}|in front of the {building}|"
    "by the {nature}|across the street|around the corner|upstairs|downstairs|outside|inside|in town|at the {event}|"
    "between the {building} and the {shop}|on the {ordinal} floor|in the {part_of} of the {room}|at the {part_of} of the street|"
    "opposite the {building}|in {city}|near {city}|abroad|on the other side of the {nature}|in the box|in my pocket|"
    "on top of the {furniture}|next door|on the wall|in the sun|on the roof|in the street|in your bag|behind the door",
    "to_somewhere": "to the {building}|to the {shop}|to the {nature}|home|to work|to school|to bed|into town|to {city}|"
    "to {city}|outside|upstairs|downstairs|into the {room}|abroad|back home|to the {event}|over there|to the {room}|away",
    "by": "by {vehicle}|on foot|by {vehicle}|on the {vehicle}|alone|together|with {them}|with my {family}",
    "tail": "|||||||| again| too| as well| anymore| yet| already| here| there| together| alone| either| instead| anyway|"
    " at all| once more| for me| with me| for us| by mistake| on my own| without me| {when}| {when}| {when}| {somewhere}|"
    " {somewhere}| after all| in time| on time| by myself| for a while| at last| for free| in a hurry| by the way| so far|"
    " for the first time| sooner or later| somewhere else| a little| a lot| very much| so much| all the time| right now|"
    " if you like| if I were you| please",
    "how": "well|slowly|quickly|carefully|badly|loudly|quietly|easily|fast|hard|early|late|perfectly|politely|together|"
    "properly|immediately|regularly|gently|nervously|happily|suddenly|seriously|in a low voice|without a word|with a smile",
    "often": "always|never|often|usually|sometimes|rarely|hardly ever|still|also|just|already|finally|really|nearly|seldom",
    "very": "very|too|so|quite|really|a bit|rather|not very|extremely|much too|a little|almost too|surprisingly|always|never",
    "wish": "I'd like to|I want to|I need to|we have to|you should|let's|we could|I'd love to|I have to|we ought to|she wants to|"
    "he would like to|they decided to|I forgot to|don't forget to|please remember to|it's time to|I'm going to|we plan to|"
    "I can't wait to|try to|you'd better|I promised to|it's easy to|it's hard to|we're trying to|I'm too tired to|I refuse to|"
    "he asked me to|she told us to|we were about to|I used to|there's no need to|you don't have to|feel free to|I'm happy to",
    "do": "clean the {room}|call {them}|buy some {food}|buy {number} {fruit}|cook dinner|make a cup of {drink}|walk the dog|"
    "write the {work_thing}|read this {work_thing}|visit {them}|go {to_somewhere}|go {hobby}|learn {subject_}|pay the bill|"
    "play {sport}|play the {instrument}|wash the car|feed the {animal}|fix the {device}|paint the {room}|open the window|"
    "close the door|take the {vehicle}|catch the {vehicle}|get up early|go to sleep|lose weight|save money|ask {them} a question|"
    "talk to {them}|wait for {them}|help {them}|meet {them}|stay {somewhere}|sit down|stand up|take a shower|have lunch|"
    "have a break|order {dish}|pack my suitcase|turn on the {device}|turn off the {device}|lock the door|send the {work_thing}|"
    "sign the {work_thing}|print the {work_thing}|rent a flat|sell the {vehicle}|buy a new {device}|change the subject|"
    "take a photo|look for {my} {belonging}|cut the grass|water the {plant}|empty the bin|make the bed|do the washing up|"
    "see a doctor|brush your teeth|put on a {garment}|try on this {garment}|take off {my} coat|find a parking space|"
    "book a room|cancel the {event}|plan the {event}|leave the {event}|miss the {event}|tell the truth|keep a secret|"
    "say goodbye|think about it|talk about {topic}|forget about {topic}|listen to the radio|watch television|light a fire|"
    "move to {city}|travel to {city}|fly to {city}|drive {to_somewhere}|have {dish} for dinner|drink more {drink}|eat less {food}",
    "did": "cleaned the {room}|called {them}|bought some {food}|bought {few} {fruit}|cooked dinner|made some {drink}|lost {my} "
    "{belonging}|found {my} {belonging}|forgot {my} {belonging}|left {my} {belonging} {somewhere}|wrote a {work_thing}|"
    "read the {work_thing}|visited {them}|went {to_somewhere}|went {hobby}|studied {subject_}|paid the bill|played {sport}|"
    "played the {instrument}|washed the car|fed the {animal}|fixed the {device}|painted the {room}|opened the window|broke the "
    "{device}|closed the door|took the {vehicle}|missed the {vehicle}|caught the {vehicle}|got up early|fell asleep {somewhere}|"
    "fell off the {furniture}|saved some money|asked {them} a question|talked to {them}|waited for {them}|helped {them}|met {them} "
    "{somewhere}|stayed {somewhere}|ordered {dish}|turned off the {device}|locked the door|sent the {work_thing}|signed the "
    "{work_thing}|sold the {vehicle}|bought a new {device}|took some photos|hurt {my} {body}|watered the {plant}|ate all the {food}|"
    "drank the {drink}|burnt the {food}|wore a {colour} {garment}|talked about {topic}|told {them} about {topic}|moved to {city}|"
    "flew to {city}|drove {to_somewhere}|laughed|cried|smiled|slept {how}|sang {how}|spoke {how}|ran {to_somewhere}|walked "
    "{to_somewhere}|grew {plant}|caught {illness}|won the {event}|lost the {event}|left without {my} {belonging}|gave {them} a "
    "{garment}|showed {them} the {work_thing}|brought {them} some {drink}|put the {food} {somewhere}|hid {my} {belonging} {somewhere}",
    "doing": "cleaning the {room}|talking to {them}|waiting for {them}|waiting for the {vehicle}|cooking dinner|making {drink}|"
    "looking for {my} {belonging}|writing a {work_thing}|reading a book|watching television|playing {sport}|playing the {instrument}|"
    "learning {subject_}|fixing the {device}|painting the {room}|feeding the {animal}|sleeping {somewhere}|sitting {somewhere}|"
    "standing {somewhere}|working {somewhere}|living {somewhere}|driving {to_somewhere}|walking {to_somewhere}|going {to_somewhere}|"
    "eating {dish}|drinking {drink}|wearing a {colour} {garment}|buying {food}|planning the {event}|thinking about {topic}|"
    "talking about {topic}|listening to music|getting {mood}|having lunch|having a shower|taking photos|studying {subject_}|"
    "growing {plant}|packing|leaving|laughing|crying|shouting|dreaming|running late|moving to {city}|saving money for the {event}",
    # topics
    "at_home": "I can't find {my} {belonging}|have you seen {my} {belonging}{tail}?|{my} {belonging} is {somewhere}|the {device} is "
    "broken{tail}|the {device} {somewhere} doesn't work{tail}|who left the {device} on?|there's a {animal} {somewhere}|put the "
    "{food} {somewhere}, please|the {room} is {very} {quality}|we need a new {furniture} for the {room}|someone is at the door|"
    "the {furniture} is {very} {quality}|can you close the window, please?|it's {very} cold in the {room}{tail}|I've just cleaned "
    "the {room}|whose {belonging} is this?|this {belonging} is {whose}|is this {garment} {whose}?|the {colour} {garment} is {whose}|"
    "there is some {drink} in the fridge|there isn't any {food} left{tail}|we've run out of {food}{tail}|would you like some more "
    "{drink}?|would you like {drink} or {drink}?|dinner will be ready in {few} minutes|the {animal} is asleep {somewhere}|"
    "the baby slept for {few} hours|please don't put {my} {belonging} {somewhere}|the light {somewhere} is still on|"
    "the {colour} {furniture} stands {somewhere}|we keep the {food} {somewhere}|{one} lives {somewhere}{tail}",
    "eating": "I usually have {food} and {drink} for breakfast|{one} had {dish} for lunch|how about {dish} for dinner?|I don't eat "
    "{food}{tail}|{one} is allergic to {food}|the {food} tastes {very} {quality}|this {drink} is {very} {quality}|could I have a glass "
    "of {drink}, please?|I'd like {dish}, please|do you take sugar in your {drink}?|the {food} smells {quality}|cut the {fruit} into "
    "small pieces|add some {food} and stir {how}|I'm {very} hungry{tail}|waiter, could we have the bill, please?|we'd like a table "
    "for {few}, please|they serve {quality} {food} {somewhere}|{one} drinks too much {drink}|{many} never eat {food} and {food} "
    "{tail}|a kilo of {fruit}, please|are these {fruit} fresh?|the best {dish} in {city}|how do you like your {food}?|help yourself to "
    "the {food}|the {fruit} aren't ripe yet|I prefer {drink} to {drink}|{name} bakes the {food} herself|who ate the last piece of {food}?",
    "errands": "how much is this {garment}?|how much are the {fruit}?|do you have this {garment} in {colour}?|does this {garment} suit me?|"
    "the {shop} opens at {clock}|the {shop} is closed on {day}s|is there a {shop} near here?|where is the nearest {shop}?|I bought this "
    "{garment} {past_when}|this {garment} is {very} {quality}{tail}|can I pay by card?|I'd like to return this {garment}|that's "
    "{number} pounds, please|it costs {number} dollars|{one} went to the {shop} to buy {food}|I need stamps and some {food}|keep "
    "the change|here is your receipt|may I try it on?|it's too {quality} for me|the {belonging} cost {number} euros|sorry, we're "
    "sold out of {food}{tail}|I'm just looking, thank you|everything is half price {when}|the {shop} is next to the {building}",
    "travel": "the {vehicle} leaves at {clock}|the {vehicle} to {city} was late{tail}|the next {vehicle} is in {few} minutes|how long does "
    "it take to get {to_somewhere}?|it takes {span} to get {to_somewhere}|excuse me, how do I get {to_somewhere}?|turn right at the "
    "{building}|go straight on until you see the {building}|the {building} is on your left|a single ticket to {city}, please|{one} goes "
    "to work {by}|{many} came here {by}|we missed the last {vehicle}{tail}|the {vehicle} was {very} crowded|I've never been to {city}|"
    "have you ever been to {city}?|how far is {city} from here?|it's {number} miles from {city} to {city}|{many} spent {span} in {city}|"
    "which platform does the train to {city} leave from?|the flight to {city} has been cancelled|the road {to_somewhere} is closed|"
    "where can I park my {vehicle}?|we stayed at a {quality} hotel by the {nature}|I'd like a room with a view of the {nature}|"
    "could you drive me {to_somewhere}?|the bridge over the river is {very} {quality}|does this {vehicle} stop at the {building}?|"
    "is this the right {vehicle} for {city}?|let's take the {vehicle} instead|we walked along the {nature}{tail}|the view from the "
    "{nature} is {quality}|they got lost in the {nature}{tail}|we climbed to the top of the {building}|slow down, there's ice on the road",
    "work_": "{my} {work_thing} is due {when}|the meeting starts at {clock}|the meeting lasted for {span}|{one} has been working here for "
    "{span}|I sent you the {work_thing} {past_when}|could you check this {work_thing}{tail}?|{one} works {somewhere} as a {job}|{one} "
    "works for a {quality} company in {city}|what does your {family} do?|{one} is a {job}|I've finished the {work_thing}{tail}|"
    "who wrote this {work_thing}?|the {work_thing} needs to be ready by {day}|we've had {few} new customers {when}|the office is on the "
    "{ordinal} floor|{one} got a new job{tail}|the company is looking for a {job}|please fill in this {work_thing}|I'm afraid the "
    "{job} is busy {when}|can I leave a message?|may I speak to {name}, please?|I'll call you back {when}|{one} is on holiday until "
    "{day}|{one} lost {my} job {past_when}|my {device} crashed{tail}|the {device} is out of paper{tail}|we agreed on everything{tail}|"
    "the {job} explained the {work_thing} to us{tail}|there were {few} mistakes in the {work_thing}|please reply by {day}",
    "school": "{one} is good at {subject_}|{many} have {subject_} {when}|my favourite subject is {subject_}|the {subject_} exam was {very} "
    "{quality}|{one} passed the exam{tail}|the lesson begins at {clock}|I didn't understand the question{tail}|can you explain that "
    "again, please?|how do you spell that word?|what does this word mean?|{one} speaks {few} languages|open your books at page {number}|"
    "there are {number} students in the class|the teacher wrote the answer on the board|{one} has studied {subject_} for {span}|"
    "{one} borrowed {few} books from the library|{many} did the homework together|the school bus comes at {clock}|raise your hand if "
    "you know the answer|I learned a lot {when}|{name} got the best marks in the class|the {subject_} teacher is {very} {trait}",
    "health": "I have {illness}{tail}|{one} has had {illness} for {span}|my {body} hurts{tail}|{one} broke {my} {body} {past_when}|{one} "
    "doesn't feel well {when}|take this medicine {few} times a day|you should see a doctor{tail}|the doctor said it was nothing "
    "serious|get well soon|{one} is in hospital{tail}|{one} gave up smoking {past_when}|I slept {very} badly {past_when}|you look "
    "{very} tired{tail}|{one} runs {few} miles every day|{one} needs glasses for reading|a walk every day keeps you healthy|"
    "does it hurt here?|how are you feeling {when}?|the dentist pulled out {few} of my teeth|wash your hands before you eat",
    "sky": "it will be {weather} {when}|it was {weather} and {weather} {past_when}|it's {very} {weather} {when}|it has been raining for "
    "{span}|the sun is shining{tail}|it snowed {past_when}|take an umbrella, it might rain{tail}|what will the weather be like {when}?|"
    "the {season} was {very} {weather}|I like {season} more than {season}|the leaves turn {colour} in the {season}|the moon is bright "
    "{when}|it gets dark {very} early in the {season}|the wind blew the {plant} over|it's {number} degrees outside|there was a storm "
    "{past_when}|the sky is {very} clear {when}|the snow melted{tail}|the {nature} was covered with snow|the {plant} are in flower",
    "free": "do you like {hobby}?|I love {hobby} and {hobby}|{one} enjoys {hobby}{tail}|my hobby is {hobby}|{one} plays the {instrument} "
    "{how}|{one} plays {sport} {when}|{many} went {hobby} {past_when}|shall we go {hobby} {when}?|the {event} was {very} {quality}|the "
    "{event} starts at {clock}|did you enjoy the {event}?|what did you think of the {event}?|our team lost the match{tail}|{name} won "
    "the race by {few} seconds|I've read that book {few} times|that was the {quality} part of the film|what kind of music do you like?|"
    "I'm reading a book about {topic}|the book has {number} pages|{one} sings in a choir{tail}|there's a {quality} film on {when}|"
    "we danced all night{tail}|who is your favourite singer?|the tickets for the {event} are sold out|I've been learning the "
    "{instrument} for {span}|the band played until midnight|the museum has a collection of {quality} paintings",
    "animals_": "the {animal} is {very} {trait}|{one} has {few} {animals}|we saw some {animals} {somewhere}|my {animal} is {few} years old|"
    "don't be afraid of the {animal}|the {animal} ran {to_somewhere}|{animals} eat {food} and {fruit}|the {colour} {animal} belongs to "
    "{them}|I heard a {animal} {somewhere} {past_when}|the {animal} is hungry{tail}|who will look after the {animal} {when}?|the "
    "{animal} jumped over the fence|there are {number} {animals} on the farm|{one} is afraid of {animals}|the {animal} caught a mouse",
    "feelings": "I'm {very} {mood}{tail}|{one} is {very} {mood} {when}|{one} seems {very} {trait}|are you {mood}?|why are you so {mood}?|"
    "{one} was {mood} about {topic}|I'm {mood} that you came|don't be {mood}|I miss {them}{tail}|I love you {tail}|{one} made me "
    "{mood}{tail}|that's {very} {quality}|what a {quality} idea|I hope that {one} isn't {mood}|{many} were {very} {mood} {past_when}|"
    "I've never been so {mood} in my life|I don't care{tail}|I can't believe it{tail}|you don't look {mood}|{one} looked {mood} but "
    "said nothing|there's nothing to worry about{tail}|I'm looking forward to the {event}|it doesn't matter{tail}|nobody is perfect",
    "talk": "what did you say?|could you repeat that, please?|I'll tell you {when}|let's talk about {topic}|{one} told me about {topic}|"
    "please don't tell {them}{tail}|I agree with {them}|I don't agree with you{tail}|you're right about {topic}|what's your phone "
    "number?|what's the matter with {them}?|nice to see you {tail}|see you {when}|have a good {event}|have you heard from {them} "
    "{tail}?|say hello to {them} from me|thank you for the {belonging}|thanks for {doing}|I'm sorry about {topic}|sorry I'm late{tail}|"
    "can I ask you something{tail}?|I didn't mean it{tail}|that's what I thought{tail}|it's up to you|I've no idea what you mean|"
    "let me think about it{tail}|what would you do?|never mind, it's not important|that's enough for {when}|who told you that?|"
    "are you sure about that?|I'm not sure yet|it depends on the weather|it was {my} own fault|you can count on me|I'd rather not",
    "people_": "{one} is {very} {trait}|{one} is {trait} and {trait}|{one} has {colour} eyes and long hair|{one} looks like {my} {family}|"
    "{one} was born in {city} in {year}|{one} is {number} years old|{one} grew up {somewhere}|{many} got married {past_when}|{one} has "
    "{few} brothers and a sister|my {family} and my {family} live in {city}|{name} is {few} years older than {name}|the {trait} {job} "
    "{did}|the {job} is a {trait} woman|the {job} is a {trait} man with a {colour} {garment}|{name} is the {trait} girl {somewhere}|"
    "do you know {name}?|who is that man {somewhere}?|I met {name} {somewhere} {past_when}|{name} and {name} are good friends{tail}|"
    "my {family} taught me how to {do}|{one} changed {my} mind about {topic}|{kin} used to be a {job}|that's {name}, my {family}'s friend",
    # patterns that everything else goes through
    "happened": "{one} {did}{tail}|{many} {did}{tail}|{one} {did} and {did}|{one} {did} {past_when}|{many} {did} {past_when}|{past_when}, {one} "
    "{did}|{one} was {doing} when the phone rang|{one} was {doing} when {name} called|while {one} was {doing}, {many} {did}|{one} {did} "
    "because it was {weather}|{one} {did} before {one} came home|after the {event}, {many} {did}|{one} {did}, so {many} {did}|{one} "
    "{did}, but {one} didn't notice|I think {one} {did}{tail}|I heard that {one} {did}|{name} said that {one} {did}|{one} hasn't been "
    "{doing} lately|it's been {span} since {one} {did}|as soon as {one} {did}, {many} {did}|{one} didn't say why {one} {did}",
    "intend": "{wish} {do}{tail}|{wish} {do}|{wish} {do} {when}|{wish} {do} and {do}|{wish} {do} before {when}|{wish} {do}, but I'm {very} {mood}|"
    "can you {do}{tail}?|could you {do}, please?|would you mind {doing}?|do you want to {do} {when}?|shall I {do}{tail}?|why don't we {do} "
    "{tail}?|who is going to {do} {when}?|I'll {do} {when}|I'll {do} as soon as I get home|I won't {do}{tail}|you must not {do} here|"
    "if it's {weather} {when}, we'll {do}|if you {do}, I'll {do}|when I'm older, I'll {do}|please {do}|please {do} {when}|never {do} "
    "without {doing}|I always {do} before I {do}|{many} {often} {do} {when}|{many} can't {do}{tail}|how often do you {do}?|when did you "
    "{do}?|where did {one} {do}?|did {many} {do} {past_when}?|it's {quality} to {do}|I'd rather {do} than {do}|let's {do} and then {do}",
    "ongoing": "{one} is {doing} {when}|I'm {doing}{tail}|{many} are {doing}{tail}|are you {doing}?|what are you {doing} for?|is {one} still "
    "{doing}?|who's {doing}?|we've been {doing} for {span}|{one} has been {doing} since {when}|I don't feel like {doing} {tail}|{one} "
    "spends too much time {doing}|{one} is tired of {doing}|{one} stopped {doing} {past_when}|I saw {them} {doing}|keep {doing}|"
    "they were {doing} all day|instead of {doing}, you should {do}|{one} is good at {hobby} and {hobby}",
    "place_": "the {building} is {somewhere}|there's a {quality} {building} {somewhere}|the {building} "
    "was built in {year}|the {building} is {very} {quality} {when}|the {building} and the {shop} are {very} {quality}|the {nature} near "
    "{city} is {very} {quality}|{city} is {very} {quality} in {month}|is the {building} open {when}?|the {building} closes at {clock}|"
    "{one} knows every street in {city}|the {part_of} of the {building} is {colour}|{city} is bigger than {city}|meet me {somewhere} {when}",
    "plain": "{at_home}|{eating}|{errands}|{travel}|{work_}|{school}|{health}|{sky}|{free}|{animals_}|{feelings}|{talk}|{people_}|{place_}|"
    "{happened}|{happened}|{happened}|{intend}|{intend}|{intend}|{ongoing}|{ongoing}",
    "everyday": "{plain}|{plain}|{plain}|{plain}|{plain}|{plain}|{plain}|{intro} {plain}|{plain}, {name}|{hello}. {plain}|{plain}. {plain}",
}
